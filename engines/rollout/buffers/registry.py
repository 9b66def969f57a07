"""Buffers by name: ours, or a user's rule by dotted path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engines.rollout.buffers.built_in import BUILT_IN
from engines.rollout.buffers.choosing_buffer import ChoosingBuffer
from engines.rollout.buffers.take_rule import TakeRule
from engines.rollout.group_buffer import GroupBuffer
from engines.rollout.protocols import PolicyVersion
from infra.hooks import construct, require_methods, require_no_options, resolve


def build(
    name: str,
    options: Mapping[str, Any],
    *,
    groups_per_step: int,
    max_staleness: int,
    policy: PolicyVersion,
    seed: int,
) -> GroupBuffer:
    """The buffer `name` (built in, or one with the rule `module:attribute` made with its options).

    Raises `InputError` for an unknown name, a path that does not lead to a rule, or options that it
    does not take.
    """
    rule = build_rule(name, options)
    if rule is None:
        return GroupBuffer(
            groups_per_step=groups_per_step, max_staleness=max_staleness, policy=policy
        )
    return ChoosingBuffer(
        rule, groups_per_step=groups_per_step, max_staleness=max_staleness, policy=policy, seed=seed
    )


def build_rule(name: str, options: Mapping[str, Any]) -> TakeRule | None:
    """The rule `module:attribute`, made with its options; None for ours, which has none. Raises
    `InputError`, as above."""
    if name in BUILT_IN:
        require_no_options("buffer", name, options)
        return None
    rule = construct("buffer", name, resolve("buffer", name, BUILT_IN), options)
    require_methods("buffer", name, rule, ("take", "keeps"))
    return rule
