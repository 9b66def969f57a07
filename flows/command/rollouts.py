"""Shows samples: `tributary rollouts`, how each was trained on and judged; `sessions diff`, what
harnesses sent.
"""

from __future__ import annotations

import json as json_module
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from rich.text import Text

from engines.rollout.records.dataset import ParquetRows
from engines.rollout.records.gallery import ROLLOUTS_FILE, RolloutRow
from engines.types import Status
from flows.command.app import CLOSE, OPEN, CommandConsole, print_json
from flows.command.samples import Found, Range, SampleHead, Samples, ShownSample, find_samples
from infra.errors import InputError
from infra.shown_text import shown

MODEL, ENVIRONMENT, PROMPT = "bold green", "italic cyan", "dim"
_ORDER: Mapping[str, Callable[[SampleHead], float]] = {
    "step": lambda sample: sample.step or 0,
    "best": lambda sample: -(sample.reward or 0.0),
    "worst": lambda sample: sample.reward or 0.0,
    "longest": lambda sample: -sample.trained,
}
"""each is a stable sort"""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which samples a person asked for; None and the empty text: all."""

    step: Range | None
    status: str
    reward: Range | None
    domain: str
    expert: str

    @classmethod
    def of(cls, step: str, status: str, reward: str, domain: str, expert: str) -> Wanted:
        """Raises InputError for what no sample could be."""
        known = [str(each) for each in Status]
        if status and status not in known:
            raise InputError(f"--status {status}: give one of {', '.join(known)}")
        steps, rewards = Range.of("--step", step), Range.of("--reward", reward)
        return cls(steps, status, rewards, domain, expert)

    def require_among(self, samples: Sequence[SampleHead], stage: str) -> None:
        """Raises InputError for a domain or an expert that the samples of a stage are not of."""
        domains = {sample.domain for sample in samples} - {""}
        if self.domain and domains and self.domain not in domains:
            raise InputError(f"--domain {self.domain}: the samples are of {_listed(domains)}")
        models = {sample.of for sample in samples} - {""} or {stage} - {""}
        if self.expert and models and not any(is_of(self.expert, name) for name in models):
            raise InputError(f"--expert {self.expert}: the samples are of {_listed(models)}")

    def __contains__(self, sample: SampleHead) -> bool:
        return (
            (self.step is None or (sample.step is not None and sample.step in self.step))
            and self.status in ("", sample.status)
            and (
                self.reward is None or (sample.reward is not None and sample.reward in self.reward)
            )
            and self.domain in ("", sample.domain)
            and (not (self.expert and sample.of) or is_of(self.expert, sample.of))
        )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def is_of(expert: str, name: str) -> bool:
    """Return whether a stage, or a version of a model, is this expert's, by its name."""
    return name == expert or name.startswith(f"{expert}-")


def show_rollouts(
    artifact: str,
    run: str,
    wanted: Wanted,
    sort: str,
    limit: int,
    root: str,
    json: bool,
    console: CommandConsole,
) -> int:
    if limit < 1:
        raise InputError(f"--limit {limit}: how many samples to show, from 1")
    found = find_samples(
        artifact, run, root, lambda name: not wanted.expert or is_of(wanted.expert, name)
    )
    samples = Samples(found.file)
    heads = samples.heads()
    wanted.require_among(heads, found.stage)
    matching = sorted((head for head in heads if head in wanted), key=_ORDER[sort])
    chosen = (samples.sample(head) for head in matching[:limit])
    if json:
        shown = [sample.as_json() for sample in chosen]
        print_json(
            {**_where(found), "kept": samples.kept, "matching": len(matching), "samples": shown}
        )
        return 0
    said = f"run {found.run}, stage {found.stage}" if found.run else "of no run of this home"
    console.say(f"{said}: {found.record.name} in {found.file}")
    for sample in chosen:
        _show(sample, console)
    console.say(f"{min(limit, len(matching))} of {len(matching)} matching samples are shown")
    if samples.kept:
        console.say(f"the artifact has {len(heads)} samples: {samples.kept}")
    return 0


def _where(found: Found) -> dict[str, Any]:
    record = found.record
    artifact = {"kind": record.kind, "digest": record.digest, "url": record.url}
    return {"run": found.run, "stage": found.stage, "artifact": artifact}


def _show(sample: ShownSample, console: CommandConsole) -> None:
    console.rule(
        f"{sample.label} \u00b7 {sample.problem} \u00b7 sample {sample.sample}", align="left"
    )
    rewards = ", ".join(f"{name} {value:.3g}" for name, value in sample.rewards.items())
    total = "" if sample.reward is None else f"reward {sample.reward:.3f}"
    console.say_line(" \u00b7 ".join(filter(None, (sample.status, total, rewards, sample.reason))))
    text = Text(shown(sample.prompt), PROMPT)
    for part in sample.response:
        said = shown(part.text)
        if part.by == "environment":
            text.append(said, ENVIRONMENT)
        else:
            text.append(said if console.is_terminal else f"{OPEN}{said}{CLOSE}", MODEL)
    console.print(text, soft_wrap=True)
    console.print(_tokens(sample, console.is_terminal), soft_wrap=True)


def _tokens(sample: ShownSample, in_colour: bool) -> Text:
    """Their ids, marked as the text is."""
    text = Text(f"{len(sample.tokens)} tokens, {sample.trained} written by the model:", PROMPT)
    before = 0
    for token, trained in zip(sample.tokens, sample.loss_mask, strict=True):
        if not in_colour and trained != before:
            text.append(f" {OPEN}" if trained else f"{CLOSE} ")
        else:
            text.append(" ")
        text.append(str(token), MODEL if trained else PROMPT)
        before = trained
    return text.append(CLOSE if before and not in_colour else "")


@dataclass(frozen=True, slots=True)
class ShownSession:
    """One sample of a rollout that a harness had: its turns, in the order of its tokens."""

    label: str
    rollout: str
    problem: str
    status: str
    reward: float
    turns: list[dict[str, Any]]
    """as the session noted them, each with what was `sampled`"""
    whole: Mapping[str, Any]
    """counts of the whole session; empty but for the first sample of a rollout"""

    @classmethod
    def of(cls, row: RolloutRow) -> ShownSession:
        note = json_module.loads(row.session)
        edges = [0, *row.cuts, len(row.response)]
        written = [row.response[begin:end] for begin, end in pairwise(edges)][::2]
        turns = [
            {**turn, "sampled": text} for turn, text in zip(note["turns"], written, strict=False)
        ]
        return cls(
            label=row.label,
            rollout=row.rollout_id,
            problem=row.problem_id,
            status=row.status,
            reward=row.reward,
            turns=turns,
            whole=note.get("whole", {}),
        )


def show_sessions(
    artifact: str, run: str, step: str, limit: int, root: str, json: bool, console: CommandConsole
) -> int:
    """Raises InputError where there are none."""
    if limit < 1:
        raise InputError(f"--limit {limit}: how many samples to show, from 1")
    steps = Range.of("--step", step)
    found = find_samples(artifact, run, root, lambda name: True)
    rows = ParquetRows(found.file)
    there = found.file.name == ROLLOUTS_FILE
    known = rows.columns(("label", "session")) if there else []
    numbers = [n for n, row in enumerate(known) if row.get("session") and _is_of(row, steps)]
    if not numbers:
        raise InputError(
            f"artifact {found.record.name} has no such sessions: its rollouts were run by a driver"
            " without the gateway. `tributary rollouts` shows them"
        )
    sessions = (ShownSession.of(RolloutRow(**rows.row(number))) for number in numbers[:limit])
    if json:
        shown = [{n: getattr(s, n) for n in s.__slots__} for s in sessions]
        print_json({"run": found.run, "stage": found.stage, "sessions": shown})
        return 0
    for session in sessions:
        _show_session(session, console)
    console.say(f"{min(limit, len(numbers))} of {len(numbers)} samples are shown")
    return 0


def _is_of(row: Mapping[str, Any], steps: Range | None) -> bool:
    last = row["label"].rpartition(" ")[2]
    return steps is None or (last.isdecimal() and int(last) in steps)


def _show_session(session: ShownSession, console: CommandConsole) -> None:
    console.rule(f"{session.label} \u00b7 {session.rollout} \u00b7 {session.problem}", align="left")
    console.say(f"{session.status} \u00b7 reward {session.reward:.3f}")
    for name in ("kinds", "drift", "asked"):
        if session.whole.get(name):
            said = ", ".join(f"{key} {value}" for key, value in session.whole[name].items())
            console.say_line(f"{name}: {said}")
    for turn in session.turns:
        console.print(_turn(turn), soft_wrap=True)


def _turn(turn: Mapping[str, Any]) -> Text:
    text = Text(f"turn {turn['turn']} after {turn['after']}: {turn['kind']}\n", "bold")
    for role, sent in turn["sent"]:
        text.append(f"  sent, {role}: {shown(sent)}\n", "dim")
    text.append(f"  sampled: {shown(turn['sampled'])}\n", "green")
    if "drift" in turn:
        text.append(f"  came back with {', '.join(turn['drift'])}\n", "yellow")
    if "came_back" in turn:
        text.append(f"  - {shown(turn['said'])}\n", "green")
        text.append(f"  + {shown(turn['came_back'])}\n", "yellow")
    return text
