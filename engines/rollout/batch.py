"""StepBatch: what one training step is made of, and how a checkpoint keeps those that wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import Any

from engines.rollout.records.json_text import dump_problem, load_problem
from engines.rollout.records.packed import pack_samples, unpack_samples
from engines.rollout.source import Cursor
from engines.types import Group


@dataclass(slots=True)
class StepBatch:
    """What one training step is made of."""

    version: int
    """policy version that sampled it"""
    groups: list[Group]
    """groups with signal, in problem order, at most as many as a step trains on"""
    rolled: list[Group]
    """every group sampled for this step, in problem order"""
    wanted: int
    """groups the step asked for"""
    reused: int
    """of `groups`, those sampled for an earlier step"""
    dropped: int
    """groups with signal that no step could use: surplus, or stale"""
    rounds: int
    """rounds of generation"""
    seconds: float
    """wall time of generation and judging"""
    cursor: Cursor
    """where the problem source stood after it"""
    recovered: int = 0
    """of the rollouts, those that an earlier attempt had finished"""
    agreement: dict[str, float] = field(default_factory=dict[str, float])
    """the engine compared with the weights that it sampled with, where that was done at once"""


def dump_batches(batches: Sequence[StepBatch], surplus: Sequence[Group]) -> bytes:
    """Batches and groups that wait. A group that stands in several places is written once: what a
    step trains on is part of what was rolled out for it."""
    everywhere = [*surplus, *(g for b in batches for g in [*b.groups, *b.rolled])]
    whole = {id(g): g for g in everywhere}
    numbers = {key: number for number, key in enumerate(whole)}
    beside = {
        "groups": [[dump_problem(g.problem), len(g.samples)] for g in whole.values()],
        "batches": [
            asdict(replace(b, groups=[], rolled=[]))
            | {
                "groups": [numbers[id(g)] for g in b.groups],
                "rolled": [numbers[id(g)] for g in b.rolled],
            }
            for b in batches
        ],
        "surplus": [numbers[id(g)] for g in surplus],
    }
    return pack_samples([s for g in whole.values() for s in g.samples], beside)


def load_batches(data: bytes) -> tuple[list[StepBatch], list[Group]]:
    """What `dump_batches` wrote: batches, surplus."""
    samples, beside = unpack_samples(data)
    rest = iter(samples)
    groups = [
        Group(load_problem(problem), list(islice(rest, count)))
        for problem, count in beside["groups"]
    ]
    return [_batch(b, groups) for b in beside["batches"]], [groups[n] for n in beside["surplus"]]


def _batch(raw: Mapping[str, Any], groups: Sequence[Group]) -> StepBatch:
    fields: dict[str, Any] = {
        **raw,
        "groups": [groups[n] for n in raw["groups"]],
        "rolled": [groups[n] for n in raw["rolled"]],
        "cursor": Cursor(**raw["cursor"]),
    }
    return StepBatch(**fields)
