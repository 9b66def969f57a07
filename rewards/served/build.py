"""The rewards that ask a served model, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engines.types import Reward
from rewards.served.asks import AsksModel
from rewards.served.judge_settings import JudgeSettings
from rewards.served.reward_model import RewardModelSettings

JUDGE, REWARD_MODEL = "judge", "reward-model"


def build_served(
    name: str, options: Mapping[str, Any], model: AsksModel, timeout_s: float
) -> Reward:
    """Raises pydantic's ValidationError."""
    from rewards.served.judge import Judge
    from rewards.served.reward_model import RewardModel

    if name == JUDGE:
        return Judge(JudgeSettings.model_validate(options), model, timeout_s)
    return RewardModel(RewardModelSettings.model_validate(options), model, timeout_s)
