"""What the stages that draw problems do with those that an `admit` stage let through."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from infra.errors import InputError
from tasks.mine.spec import MINED
from tasks.stage import StageContext, admitted_pools

if TYPE_CHECKING:
    from engines.rollout.drivers.driver import LiveDomain
    from engines.types import Curriculum, Problem, Split


async def only_admitted(context: StageContext, domains: Sequence[LiveDomain]) -> list[LiveDomain]:
    """The domains, drawing only admitted problems where the stage was given some; of mined ones,
    those domains of which there are any. Raises InputError for a domain without any of the pools
    that the stage draws."""
    if MINED in context.inputs:
        return await asyncio.to_thread(_only_mined, domains, context.inputs[MINED])
    for role, folder in context.inputs.items():
        pools = admitted_pools(role)
        if pools is not None:
            return await asyncio.to_thread(_restrict, domains, folder, pools)
    return list(domains)


def _only_mined(domains: Sequence[LiveDomain], folder: Path) -> list[LiveDomain]:
    from engines.rollout.records.dataset import read_admitted

    there = {row.domain for row in read_admitted(folder)}
    return _restrict([domain for domain in domains if domain.name in there], folder, ())


def _restrict(
    domains: Sequence[LiveDomain], folder: Path, pools: Sequence[str]
) -> list[LiveDomain]:
    return [replace(d, curriculum=restricted(d.curriculum, folder, d.name, pools)) for d in domains]


def restricted(
    curriculum: Curriculum,
    folder: Path,
    domain: str | None = None,
    pools: Sequence[str] = (),
    kept: Callable[[Sequence[Problem]], Sequence[Problem]] | None = None,
) -> Curriculum:
    """The curriculum with the admitted problems of one domain; None: of the only one. `pools`: only
    of these; `kept`: what of each split's. Raises InputError where there is none of them."""
    from curricula.splits import Admitted
    from engines.rollout.records.dataset import read_admitted

    by_split: dict[Split, list[Problem]] = {}
    there = [row for row in read_admitted(folder) if domain in (None, row.domain)]
    if pools and not any(row.pool in pools for row in there):
        counts = Counter(row.pool for row in there)
        said = ", ".join(f"{count} {pool}" for pool, count in counts.items()) or "no other either"
        raise InputError(
            f"no problem of {domain} is {' or '.join(pools)} ({said}): let the `screen` try more"
            " problems, or draw another of its `pools`"
        )
    for row in there:
        if not pools or row.pool in pools:
            by_split.setdefault(row.split, []).append(row.problem)
    if kept is None:
        return Admitted(curriculum, by_split)
    return Admitted(curriculum, {split: kept(problems) for split, problems in by_split.items()})
