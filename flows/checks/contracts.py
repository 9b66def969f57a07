"""The contracts of a user's parts, by kind: which promises one breaks.

Advantages, losses, data sources, group filters and buffers are tried by themselves. Drivers,
curricula and rewards are tried as a domain of theirs would use them (`flows.checks.trial`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from engines.algorithms.parts import Need
from engines.draws import Fault

Contract: TypeAlias = Literal["advantage", "loss", "data-source", "group-filter", "buffer"]
"""kinds that are tried by themselves"""


def faults_of(
    kind: Contract,
    name: str,
    options: Mapping[str, Any],
    *,
    needs: Collection[Need] = ("spread",),
    domains: Sequence[str] = (),
    is_beside_training: bool = False,
) -> Sequence[Fault]:
    """Every broken promise. Raises InputError for a wrong path or option.

    `needs` are the advantage's, `domains` those that a data source picks from. Imports torch for
    an advantage or a loss.
    """
    match kind:
        case "advantage" | "loss":
            return _of_algorithm(kind, name, options, needs)
        case "data-source":
            return _of_source(name, options, domains, is_beside_training)
        case "group-filter":
            from engines.rollout.filters import build, filter_faults

            return filter_faults(build(name, options, "spread" in needs))
        case "buffer":
            from engines.rollout.buffers import build_rule, rule_faults

            rule = build_rule(name, options)
            return () if rule is None else rule_faults(rule)


def _of_algorithm(
    kind: Literal["advantage", "loss"],
    name: str,
    options: Mapping[str, Any],
    needs: Collection[Need],
) -> Sequence[Fault]:
    from engines.algorithms.contract import advantage_faults, loss_faults
    from engines.algorithms.parts import custom

    part = custom(kind, name, dict(options))
    return advantage_faults(part, needs) if kind == "advantage" else loss_faults(part)


def _of_source(
    name: str, options: Mapping[str, Any], domains: Sequence[str], is_beside_training: bool
) -> Sequence[Fault]:
    from engines.rollout.sources import DataSource, build_source, require_can_learn, source_faults

    def make() -> DataSource:
        source = build_source(name, options, domains, seed=0)
        assert source is not None
        return source

    found = build_source(name, options, domains, seed=0)
    if found is None:
        return ()
    require_can_learn(name, found, is_beside_training)
    return source_faults(make, domains)
