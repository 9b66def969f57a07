"""Rewards by name: ours, or a user's class or async function by dotted path."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any

from engines.types import Reward
from infra.errors import InputError
from infra.hooks import check_options, construct, resolve

BUILT_IN: Mapping[str, str] = {
    "math": "rewards.math:Math",
    "agent-answer": "rewards.agent_answer:AgentAnswer",
    "constraints": "rewards.constraints:Constraints",
    "reasoning-gym": "rewards.reasoning_gym:ReasoningGymScore",
    "format": "rewards.shaping:Format",
    "repetition": "rewards.shaping:Repetition",
    "length": "rewards.shaping:Length",
}


def build(name: str, options: Mapping[str, Any] | None = None) -> Reward:
    """The reward `name` (built in, or `module:attribute`) made with its options.

    A user's part is a class (or factory) whose instances are `async __call__(transcript)`, or
    itself an `async def reward(transcript, **options)`. Raises `InputError` for anything else.
    """
    factory = resolve("reward", name, BUILT_IN)
    options = options or {}
    if inspect.iscoroutinefunction(factory):
        check_options("reward", name, factory, options)
        return functools.partial(factory, **options)
    reward = construct("reward", name, factory, options)
    if not inspect.iscoroutinefunction(getattr(reward, "__call__", None)):  # noqa: B004
        raise InputError(
            f"reward {name!r}: {type(reward).__name__} is no reward: it needs "
            f"`async def __call__(self, transcript) -> Verdict`."
        )
    return reward
