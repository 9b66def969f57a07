"""The `reward-model` reward: the output of a served model's head for the whole conversation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from pydantic import NonNegativeInt

from engines.types import Message, Transcript, Verdict
from infra.config import Config
from rewards.served.asks import AsksModel


class RewardModelSettings(Config):
    """Options of the reward `reward-model`."""

    output: NonNegativeInt = 0
    """which of the head's outputs counts, from 0 on"""
    scale: Literal["raw", "sigmoid", "softmax"] = "sigmoid"
    """raw: the number itself; sigmoid: between 0 and 1; softmax: its share among all outputs. An
    outcome is between 0 and 1"""


class RewardModel:
    """Raises where the model does not answer."""

    def __init__(self, settings: RewardModelSettings, model: AsksModel, timeout_s: float) -> None:
        self._settings, self._model, self._timeout_s = settings, model, timeout_s

    async def __call__(self, transcript: Transcript) -> Verdict:
        problem = replace(transcript.problem, thinking=None)
        turns = said(transcript)
        outputs = await self._model.outputs(problem, turns, timeout_s=self._timeout_s)
        at = self._settings.output
        if at >= len(outputs):
            raise ValueError(f"`output` is {at}, and the model's head has {len(outputs)} outputs")
        raw = outputs[at]
        return Verdict(_scaled(self._settings, outputs), {"raw": raw})


def said(transcript: Transcript) -> Sequence[Message]:
    """The turns without thoughts, up to the assistant's last: a budget may have run out after a
    tool's answer.

    Raises ValueError.
    """
    turns = list(transcript.messages)
    while turns and turns[-1].role != "assistant":
        turns.pop()
    if not turns:
        raise ValueError("the assistant said nothing that could be judged")
    return [replace(turn, reasoning=None) for turn in turns]


def _scaled(settings: RewardModelSettings, outputs: Sequence[float]) -> float:
    raw = outputs[settings.output]
    match settings.scale:
        case "raw":
            return raw
        case "sigmoid":
            return 0.5 * (1 + math.tanh(raw / 2))
        case "softmax":
            most = max(outputs)
            return math.exp(raw - most) / sum(math.exp(x - most) for x in outputs)
