"""`tributary rollouts`: samples of an artifact, what was trained on, and how it was judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from engines.types import Status
from flows.command.find_samples import Found, find_samples
from flows.command.output import CLOSE, OPEN, CommandConsole, print_json
from flows.command.ranges import Range
from flows.command.shown_samples import SampleHead, Samples, ShownSample
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


def is_of(expert: str, name: str) -> bool:
    """Whether a stage, or a version of a model, is this expert's, by its name."""
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
    text = Text(f"{len(sample.tokens)} tokens, {sample.trained} trained on:", PROMPT)
    before = 0
    for token, trained in zip(sample.tokens, sample.loss_mask, strict=True):
        if not in_colour and trained != before:
            text.append(f" {OPEN}" if trained else f"{CLOSE} ")
        else:
            text.append(" ")
        text.append(str(token), MODEL if trained else PROMPT)
        before = trained
    return text.append(CLOSE if before and not in_colour else "")
