"""The last steps of a stage, whose rollouts are all kept to browse; of the others, a sample is.

observe ──▶ add(step, groups) ──▶ the last steps ──(too many)──▶ the gallery gets the sample
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from engines.rollout.protocols import ChatFormat
from engines.rollout.records.gallery import (
    NO_LOGPROBS,
    SHOWN_GROUPS,
    Gallery,
    ShownSteps,
    TrainerLogprobs,
    best_and_worst,
)
from engines.types import Group

_STEPS = 3
MOST_TOKENS = 2_000_000
"""of all rollouts of the last steps together, prompts included: some 30 MB with their text"""
_FOLDER, _INDEX = "last_steps", "index.json"


@dataclass(slots=True)
class _Step:
    """One step: what the gallery would keep of it, and all of it, as Parquet."""

    number: int
    tokens: int
    shown_tokens: int
    """of the sample"""
    sample: bytes
    whole: Gallery
    _written: bytes = b""

    def write(self) -> bytes:
        """All rollouts. They are decoded here, once, and not while the step waits."""
        if not self._written:
            self._written = self.whole.encoded()
        return self._written


@dataclass(slots=True)
class LastSteps:
    """The last steps of one stage; in its checkpoints, so that a resumed one keeps the same."""

    chat: ChatFormat
    steps: int = _STEPS
    most_tokens: int = MOST_TOKENS
    earlier: ShownSteps = field(default_factory=ShownSteps)
    """of the steps before the last"""
    _kept: deque[_Step] = field(default_factory=deque)

    def add(
        self,
        step: int,
        groups: Sequence[Group],
        gallery: Gallery,
        logprobs: TrainerLogprobs = NO_LOGPROBS,
    ) -> None:
        """Take a step in; samples of those that are no longer among the last go to the gallery,
        unless there are too many.
        `logprobs` are the trainer's, of those rollouts that it scored."""
        sample, whole = Gallery(self.chat), Gallery(self.chat)
        shown = best_and_worst(groups)
        sample.add(f"step {step}", shown, logprobs)
        samples = [s for group in groups for s in group.samples]
        whole.add_later(f"step {step}", samples, logprobs)
        tokens = sum(len(s.tokens) for group in groups for s in group.samples)
        shown_tokens = sum(len(s.tokens) for s in shown)
        self._kept.append(_Step(step, tokens, shown_tokens, sample.encoded(), whole))
        while len(self._kept) > self.steps or sum(s.tokens for s in self._kept) > self.most_tokens:
            left = self._kept.popleft()
            if self.earlier.take(left.number, left.shown_tokens):
                gallery.take_in(left.sample)

    def has(self, step: int) -> bool:
        """Return whether rollouts of this step are shown."""
        return step in self.earlier.tokens or any(kept.number == step for kept in self._kept)

    def written(self) -> list[bytes]:
        """All rollouts of each, in order."""
        return [step.write() for step in self._kept]

    @property
    def statement(self) -> str:
        """Return what a stage's rollouts are, for who browses them."""
        others, one_in = f"the best and the worst of {SHOWN_GROUPS} groups", self.earlier.one_in
        which = "of each{} step" if one_in == 1 else f"of one in {one_in}{{}} steps"
        if not self._kept:
            return f"{others} {which.format('')}"
        first, last = self._kept[0].number, self._kept[-1].number
        whole = f"step {last}" if first == last else f"steps {first} to {last}"
        if first == 1:
            return f"all rollouts of {whole}"
        return f"all rollouts of {whole}; {others} {which.format(' earlier')}"

    def snapshot(self) -> Sequence[_Step]:
        """Return it as of now; `save` writes it, in a thread."""
        return list(self._kept)

    @staticmethod
    def save(steps: Sequence[_Step], folder: Path) -> None:
        """Into a checkpoint's folder."""
        place = folder / _FOLDER
        place.mkdir(exist_ok=True)
        for step in steps:
            (place / f"{step.number}.sample").write_bytes(step.sample)
            (place / f"{step.number}.whole").write_bytes(step.write())
        index = [[step.number, step.tokens, step.shown_tokens] for step in steps]
        (place / _INDEX).write_text(json.dumps(index))

    def restore(self, folder: Path) -> None:
        place = folder / _FOLDER
        self._kept.clear()
        for number, tokens, shown_tokens in json.loads((place / _INDEX).read_text()):
            sample, whole = (
                (place / f"{number}.{which}").read_bytes() for which in ("sample", "whole")
            )
            made = _Step(number, tokens, shown_tokens, sample, Gallery(self.chat), whole)
            self._kept.append(made)
