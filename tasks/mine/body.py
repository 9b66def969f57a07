"""`mine`: problems whose rollouts show a pathology, among those that earlier stages kept.

    kept groups ──▶ transcripts ──▶ detectors ──▶ problems, those that fail most often first

Nothing is sampled and nothing is trained.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from engines.chat import Chat
from engines.rollout.protocols import ChatFormat
from engines.rollout.records.dataset import AdmittedProblem, write_admitted
from engines.rollout.records.packing import dump_problem, has_groups, saved_groups
from engines.rollout.records.take_log import groups_of, kept_takes
from engines.types import (
    TRAINABLE,
    Group,
    Message,
    Problem,
    Sample,
    Status,
    TokenIds,
    Transcript,
)
from rewards.pathologies import pathologies_in
from rewards.text import TAGS
from tasks.evaluate.score_statistics import interval, mean
from tasks.mine.spec import MINE_FILE, TRIGGERS_FILE, MineSettings, MineSpec
from tasks.resources import unless_stopped
from tasks.stage import StageContext, require_inputs


@dataclass(slots=True)
class Tally:
    """What the rollouts of one problem show."""

    problem: Problem
    rollouts: int = 0
    broken: int = 0
    """rollouts that show any pathology"""
    shown: Counter[str] = field(default_factory=Counter[str])
    """rollouts by pathology"""

    @property
    def share(self) -> float:
        return self.broken / self.rollouts


Tallies = Mapping[str, Mapping[str, Tally]]
"""by domain and by what the problem says, whatever its id"""


async def run(spec: MineSpec, context: StageContext) -> dict[str, float]:
    """Fill `context.out`. Raises InputError for rollouts that are not there, Stopped."""
    require_inputs(context, ["model"])
    began = time.monotonic()
    chat = Chat.load(context.inputs["model"])
    kept = [folder for role, folder in context.inputs.items() if role != "model"]
    found: defaultdict[str, dict[str, Tally]] = defaultdict(dict)
    for number, folder in enumerate(kept, 1):
        work = asyncio.to_thread(count, found, chat, kept_groups(folder), spec.settings)
        await unless_stopped(context, work)
        context.reporter.progress(number, len(kept), "looked through a stage's rollouts")
    chosen = {
        domain: worst(tallies.values(), spec.settings.most) for domain, tallies in found.items()
    }
    write(context.out, found, chosen, spec.settings)
    return {**_summary(found, chosen, spec.settings), "work_seconds": time.monotonic() - began}


def kept_groups(artifact: Path) -> Iterator[Group]:
    """Yield all groups that a stage kept whole. Raises InputError where it kept none."""
    if has_groups(artifact):
        yield from saved_groups(artifact)
        return
    for take in kept_takes(artifact):
        yield from groups_of(artifact, take)


def count(
    found: defaultdict[str, dict[str, Tally]],
    chat: ChatFormat,
    groups: Iterable[Group],
    settings: MineSettings,
) -> None:
    """Add the rollouts of one stage. Those that failed count nowhere, and each counts once."""
    seen = set[str]()
    for group in groups:
        by_rollout: defaultdict[str, list[Sample]] = defaultdict(list)
        for sample in group.samples:
            if sample.status in TRAINABLE and sample.rollout_id not in seen:
                by_rollout[sample.rollout_id].append(sample)
        seen |= by_rollout.keys()
        problem = chat.decided(group.problem)
        said = dump_problem(replace(group.problem, id=""))
        for samples in by_rollout.values():
            tally = found[samples[0].domain].setdefault(said, Tally(group.problem))
            each = [
                pathologies_in(transcript_of(chat, problem, s), settings.kinds) for s in samples
            ]
            shown = [kind for kind in settings.kinds if any(kind in one for one in each)]
            tally.rollouts += 1
            tally.broken += bool(shown)
            tally.shown.update(shown)


def transcript_of(chat: ChatFormat, problem: Problem, sample: Sample) -> Transcript:
    """Return a sample as rewards see its rollout, read back from its tokens. What a tool or a
    harness said is as the chat template writes it."""
    start = sample.num_prompt_tokens
    mask = sample.loss_mask[start:]
    edges = ((mask[1:] != mask[:-1]).nonzero()[0] + 1).tolist() if len(mask) else []
    messages: list[Message] = []
    for begin, end in pairwise([0, *edges, len(mask)] if len(mask) else []):
        ids = sample.tokens[start + begin : start + end]
        if mask[begin]:
            messages.append(_turn(chat, problem, ids, sample.status))
        else:
            messages.append(Message("tool", chat.decode(ids)))
    return Transcript(problem, tuple(messages), sample.status, sample.num_trained_tokens)


def _turn(chat: ChatFormat, problem: Problem, ids: TokenIds, status: Status) -> Message:
    said = chat.parse(problem, ids)
    if said.error and status is Status.COMPLETED:  # calls of tools that its driver alone knew
        return Message("assistant", TAGS.sub(" ", said.content))
    return said.message()


def worst(tallies: Iterable[Tally], most: int) -> list[Tally]:
    """Return those of the problems that trigger a pathology most often, the first of equals."""
    return sorted((t for t in tallies if t.broken), key=lambda t: -t.share)[:most]


def write(
    out: Path, found: Tallies, chosen: Mapping[str, Sequence[Tally]], settings: MineSettings
) -> None:
    rows = [
        AdmittedProblem(domain, "rl", t.problem)
        for domain, tallies in chosen.items()
        for t in tallies
    ]
    write_admitted(out, rows)
    lines = [
        {"domain": domain, "problem_id": t.problem.id, "rollouts": t.rollouts, **t.shown}
        for domain, tallies in chosen.items()
        for t in tallies
    ]
    (out / TRIGGERS_FILE).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    counts = {
        domain: {
            "rollouts": sum(t.rollouts for t in tallies.values()),
            "problems": len(tallies),
            "kept": len(chosen[domain]),
            "shown": {kind: _shown(list(tallies.values()), kind) for kind in settings.kinds},
        }
        for domain, tallies in found.items()
    }
    (out / MINE_FILE).write_text(json.dumps(counts, indent=1))


def _shown(tallies: Sequence[Tally], kind: str) -> dict[str, float]:
    """Return how often one pathology is: `rate` is the mean share over problems, with its
    interval."""
    shares = [t.shown[kind] / t.rollouts for t in tallies]
    low, high = interval(shares)
    return {
        "rollouts": sum(t.shown[kind] for t in tallies),
        "problems": sum(t.shown[kind] > 0 for t in tallies),
        "rate": mean(shares),
        "low": low,
        "high": high,
    }


def _summary(
    found: Tallies, chosen: Mapping[str, Sequence[Tally]], settings: MineSettings
) -> dict[str, float]:
    tallies = [t for by_problem in found.values() for t in by_problem.values()]
    rates = {f"rate/{kind}": _shown(tallies, kind)["rate"] for kind in settings.kinds}
    return {
        "rollouts": float(sum(t.rollouts for t in tallies)),
        "problems": float(len(tallies)),
        "kept": float(sum(map(len, chosen.values()))),
        **rates,
    }
