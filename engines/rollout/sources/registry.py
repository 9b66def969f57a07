"""Data sources by name: ours, or a user's class by dotted path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engines.rollout.drivers.live_domain import LiveDomain
from engines.rollout.records.notes import Notes
from engines.rollout.sources.built_in import BUILT_IN
from engines.rollout.sources.chosen_tickets import ChosenTickets
from engines.rollout.sources.data_source import DataSource, LearningSource
from engines.rollout.tickets import TicketSource
from engines.types import Split
from infra.errors import InputError
from infra.hooks import construct_with, require_methods, require_no_options, resolve

_IN_TURNS = "in-turns"


def build(
    name: str,
    options: Mapping[str, Any],
    domains: Sequence[LiveDomain],
    *,
    split: Split,
    seed: int,
    start: int,
    limit: int,
    is_beside_training: bool,
    notes: Notes,
) -> TicketSource:
    """The tickets of a stage, with the problems that the source `name` picks; `limit`: of each
    domain's problems from `start` on.

    Raises `InputError` for an unknown name, a path that does not lead to a source, options that it
    does not take, or one that learns where it cannot.
    """
    source = build_source(name, options, [domain.name for domain in domains], seed)
    if source is None:
        return TicketSource(domains, split=split, seed=seed, start=start)
    require_can_learn(name, source, is_beside_training)
    return ChosenTickets(
        domains, split=split, seed=seed, start=start, source=source, limit=limit, notes=notes
    )


def build_source(
    name: str, options: Mapping[str, Any], domains: Sequence[str], seed: int
) -> DataSource | None:
    """The source, made with its options, and with `domains` and `seed` where its constructor has
    parameters of these names; None for `in-turns`. Raises `InputError`, as above."""
    if name == _IN_TURNS:
        require_no_options("data source", name, options)
        return None
    factory = resolve("data source", name, BUILT_IN)
    offered = {"domains": tuple(domains), "seed": seed}
    refusal = "the source gets the stage's"
    source = construct_with("data source", name, factory, options, offered, refusal=refusal)
    require_methods("data source", name, source, ("pick",))
    return source


def require_can_learn(name: str, source: DataSource, is_beside_training: bool) -> None:
    """Raises `InputError` for one that learns while sampling goes on beside training."""
    if is_beside_training and isinstance(source, LearningSource):
        raise InputError(
            f"data source {name!r} learns from results (it has told()), and above max_staleness 0"
            " the clock decides which results it knows, so a resumed stage would draw other"
            " problems; set `max_staleness: 0`, or remove told()"
        )
