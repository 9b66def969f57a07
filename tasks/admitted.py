"""What the stages that draw problems do with those that an `admit` stage let through."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.stage import ADMITTED, StageContext

if TYPE_CHECKING:
    from engines.rollout.drivers.driver import LiveDomain
    from engines.types import Curriculum


async def only_admitted(context: StageContext, domains: Sequence[LiveDomain]) -> list[LiveDomain]:
    """The domains, drawing only admitted problems where the stage was given some."""
    folder = context.inputs.get(ADMITTED)
    if folder is None:
        return list(domains)
    return await asyncio.to_thread(
        lambda: [replace(d, curriculum=restricted(d.curriculum, folder, d.name)) for d in domains]
    )


def restricted(curriculum: Curriculum, folder: Path, domain: str | None = None) -> Curriculum:
    """The curriculum with the admitted problems of one domain; None: of the only one."""
    from curricula.admitted import Admitted
    from engines.rollout.records.dataset import read_admitted
    from engines.types import Problem, Split

    by_split: dict[Split, list[Problem]] = {}
    for row in read_admitted(folder):
        if domain in (None, row.domain):
            by_split.setdefault(row.split, []).append(row.problem)
    return Admitted(curriculum, by_split)
