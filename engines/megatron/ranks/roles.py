"""What a group of ranks trains, by role: where a rank finds the class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Role = Literal["sft", "policy", "critic"]

ROLES: Mapping[Role, str] = {
    "sft": "engines.megatron.train.sft_trainer:SftTrainer",
    "policy": "engines.megatron.train.trainer:RlTrainer",
    "critic": "engines.megatron.train.critic:CriticTrainer",
}
