"""Groups as bytes, for what waits at a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from engines.rollout.records.json_text import dump_problem, load_problem
from engines.rollout.records.packed import pack_samples, unpack_samples
from engines.types import Group


def pack_groups(groups: Sequence[Group]) -> bytes:
    heads = [[dump_problem(g.problem), g.ticket, len(g.samples)] for g in groups]
    return pack_samples([s for g in groups for s in g.samples], heads)


def unpack_groups(data: bytes) -> list[Group]:
    """The counterpart. Raises ValueError for data that are incomplete or damaged."""
    samples, heads = unpack_samples(data)
    rest = iter(samples)
    return [
        Group(load_problem(problem), list(islice(rest, count)), ticket)
        for problem, ticket, count in heads
    ]
