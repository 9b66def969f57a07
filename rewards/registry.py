"""Rewards by name: ours, or a user's class or function by dotted path."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, cast

from engines.types import Reward
from infra.errors import InputError
from infra.hooks import check_options, construct, resolve
from rewards.built_in import BUILT_IN
from rewards.built_in import SERVED as SERVED_OPTIONS

SERVED = frozenset(SERVED_OPTIONS)
"""they ask a served model: `rewards.served.build`"""
QUICK = frozenset(BUILT_IN) - SERVED - {"reasoning-gym", "regex"}
"""pure, or with bounds of their own: they are called where the rollout is, without a time limit;
a pattern of the user's may search a reply for ever"""


def build(name: str, options: Mapping[str, Any] | None = None) -> Reward:
    """The reward `name` (built in, or `module:attribute`) made with its options.

    A user's part is a class (or factory) whose instances are called with the transcript, or itself
    a function `reward(transcript, **options)`; `async` or not. Raises `InputError` for anything
    else.
    """
    if name in SERVED:
        raise InputError(f"reward {name!r} asks a served model, which only a stage has")
    factory = resolve("reward", name, BUILT_IN)
    options = options or {}
    if _judges(factory, options):
        check_options("reward", name, factory, options)
        return functools.partial(factory, **options)
    reward: Any = construct("reward", name, factory, options)
    if not callable(reward):
        raise InputError(
            f"reward {name!r}: {type(reward).__name__} is not a reward: it needs "
            f"`async def __call__(self, transcript) -> Verdict`."
        )
    return cast("Reward", reward)


def _judges(factory: Callable[..., Any], options: Mapping[str, Any]) -> bool:
    """Whether it is the reward itself: a function that needs one argument beside the options."""
    if not inspect.isfunction(factory):
        return False
    parameters = list(inspect.signature(factory).parameters.values())[:1]
    return any(
        p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        and p.default is p.empty
        and p.name not in options
        for p in parameters
    )
