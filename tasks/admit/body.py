"""`admit`: try problems without a model, and let those through that are fit to train on."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from engines.draws import draw_demonstrations, draw_problems
from engines.rollout.records.dataset import AdmittedProblem, write_admitted
from engines.types import Curriculum, Problem, Split
from infra.errors import TrainingStopped
from tasks.admit.admission import CAUSES, Finding, FindingJournal, admit
from tasks.admit.spec import ADMISSION_FILE, REFUSED_FILE, AdmitSpec
from tasks.live_domain import OpenDomain, open_domain
from tasks.resources import once_each, read_rows, unless_stopped
from tasks.stage import StageContext

_NAMED = 3
"""refused problems that a warning names"""


@dataclass(frozen=True, slots=True)
class Tried:
    """The findings on the problems of one split of a domain, in the order of their drawing."""

    domain: str
    split: Split
    findings: Sequence[Finding]

    @property
    def name(self) -> str:
        return f"{self.domain}, {self.split}"

    @property
    def admitted(self) -> list[Problem]:
        return [found.problem for found in self.findings if found.is_admitted]

    @property
    def refused(self) -> list[Finding]:
        return [found for found in self.findings if not found.is_admitted]

    @property
    def counts(self) -> dict[str, int]:
        """A problem that is refused for several reasons counts for the first."""
        causes = Counter(found.refusals[0].cause for found in self.refused)
        return {"tried": len(self.findings), "admitted": len(self.admitted), **causes}


async def run(spec: AdmitSpec, context: StageContext) -> dict[str, float]:
    """Fill `context.out`. Raises InputError for a curriculum that cannot solve its problems,
    TrainingStopped where none of a domain's split is admitted, Stopped."""
    tried: list[Tried] = []
    async with AsyncExitStack() as stack:
        opened = await asyncio.to_thread(lambda: [open_domain(d) for d in spec.domains])
        processes = [process for domain in opened for process in domain.processes]
        for process in processes:
            stack.push_async_callback(process.close)
        await asyncio.gather(*[process.start() for process in processes])
        await read_rows(context, [domain.live for domain in opened])
        journal = await FindingJournal.open(context.checkpoints)
        stack.push_async_callback(journal.flush)
        began = time.monotonic()
        total = len(opened) * sum(spec.settings.problems.values())
        for domain, written in zip(opened, spec.domains, strict=True):
            for split in spec.drawn:
                done = sum(len(each.findings) for each in tried)
                work = _try(spec, context, domain, written.max_turns, split, journal, done, total)
                tried.append(await unless_stopped(context, work))
        worked = time.monotonic() - began
    _warn(context, tried)
    _write(context.out, tried)
    return {**_summary(tried), "work_seconds": worked}


async def _try(
    spec: AdmitSpec,
    context: StageContext,
    domain: OpenDomain,
    turns: int,
    split: Split,
    journal: FindingJournal,
    done: int,
    total: int,
) -> Tried:
    """One split of a domain; what an earlier attempt found is not tried again."""
    live = domain.live
    problems = await asyncio.to_thread(_drawn, live.curriculum, split, spec)
    if split != "sft":
        problems = once_each(context, f"{live.name}, {split}", problems)
    known = journal.known(live.name, split)
    ready = done + sum(problem.id in known for problem in problems)

    def on_found(found: Finding) -> None:
        nonlocal ready
        ready += 1
        journal.keep(live.name, split, found)
        context.pulse.beat()
        context.reporter.progress(ready, total, f"tried {found.problem.id}")

    findings = await admit(
        live.curriculum,
        domain.environment,
        live.judge,
        problems,
        spec.settings,
        turns=turns,
        known=known,
        on_found=on_found,
    )
    await journal.flush()
    return Tried(live.name, split, findings)


def _drawn(curriculum: Curriculum, split: Split, spec: AdmitSpec) -> list[Problem]:
    count = spec.drawn[split]
    if split == "sft":
        return [d.problem for d in draw_demonstrations(curriculum, count, spec.seed)]
    return draw_problems(curriculum, split, count, spec.seed)


def _warn(context: StageContext, tried: Sequence[Tried]) -> None:
    """Says what is refused. Raises TrainingStopped where nothing is left to draw from."""
    for each in tried:
        named = [f"{f.problem.id}: {f.reasons[0]}" for f in each.refused[:_NAMED]]
        if not each.admitted:
            raise TrainingStopped(
                f"admit: none of {len(each.findings)} problems of {each.name} is fit to train on,"
                f" e.g. {'; '.join(named)}. Correct the curriculum, or the domain's `max_turns`"
            )
        if each.refused:
            context.reporter.warn(
                f"{each.name}: {len(each.refused)} of {len(each.findings)} problems refused, e.g."
                f" {'; '.join(named)}"
            )


def _write(out: Path, tried: Sequence[Tried]) -> None:
    rows = [AdmittedProblem(t.domain, t.split, problem) for t in tried for problem in t.admitted]
    write_admitted(out, rows)
    lines = (json.dumps(line) for line in _refused(tried))
    (out / REFUSED_FILE).write_text("".join(f"{line}\n" for line in lines))
    counts = {each.name: each.counts for each in tried}
    (out / ADMISSION_FILE).write_text(json.dumps(counts, indent=1))


def _refused(tried: Sequence[Tried]) -> Iterator[dict[str, object]]:
    for each in tried:
        for found in each.refused:
            yield {
                "domain": each.domain,
                "split": each.split,
                "id": found.problem.id,
                "cause": found.refusals[0].cause,
                "reasons": found.reasons,
            }


def _summary(tried: Sequence[Tried]) -> dict[str, float]:
    causes: Counter[str] = Counter(f.refusals[0].cause for each in tried for f in each.refused)
    admitted = sum(len(each.admitted) for each in tried)
    return {
        "tried": float(sum(len(each.findings) for each in tried)),
        "admitted": float(admitted),
        **{f"refused/{cause}": float(causes[cause]) for cause in CAUSES},
        **{f"admitted/{t.domain}/{t.split}": float(len(t.admitted)) for t in tried},
    }
