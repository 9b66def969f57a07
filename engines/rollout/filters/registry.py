"""Group filters by name: ours, or a user's class by dotted path."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from engines.rollout.filters.built_in import BUILT_IN
from engines.rollout.filters.group_filter import GroupFilter
from infra.hooks import construct, require_methods, resolve


def build(name: str, options: Mapping[str, Any], needs_spread: bool) -> GroupFilter:
    """The filter `name` (built in, or `module:attribute`) made with its options, and with
    `needs_spread` where its constructor has such a parameter: whether the advantage compares the
    rewards of a group.

    Raises `InputError` for an unknown name, a path that does not lead to a filter, or options that
    it does not take.
    """
    factory = resolve("group filter", name, BUILT_IN)
    knows = "needs_spread" in inspect.signature(factory).parameters
    given = {"needs_spread": needs_spread} if knows else {}
    made = construct("group filter", name, factory, {**given, **options})
    require_methods("group filter", name, made, ("keep",))
    return made
