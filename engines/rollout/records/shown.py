"""Which samples of a step a person is shown, and of which the trainer says what it thought."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from engines.types import Group, Sample

MOST_STEPS, MOST_TOKENS = 800, 4_000_000
"""of a stage's steps that have samples to show, and of all these samples: some 70 MB"""
SHOWN_GROUPS = 3
"""of a step, as many are shown"""
_SHOWN_TOKENS = 65_536
"""of the shown samples of a step together; of a single group's there may be more"""
_SCORED_TOKENS = 65_536
"""of a step, whose logprobs come back from the ranks: 256 KiB"""


def best_and_worst(groups: Sequence[Group], count: int = SHOWN_GROUPS) -> list[Sample]:
    """Of `count` groups, spread over the step; groups with signal first. Of fewer where the samples
    are long."""
    chosen = [g for g in groups if g.has_signal] or list(groups)
    shown: list[Sample] = []
    tokens = 0
    for group in chosen[:: max(1, len(chosen) // count)][:count]:
        ranked = sorted(group.samples, key=lambda s: s.reward)
        pair = ranked[-1:] + ranked[:-1][:1]
        tokens += sum(len(s.tokens) for s in pair)
        if shown and tokens > _SHOWN_TOKENS:
            break
        shown += pair
    return shown


def first_of(samples: Sequence[Sample]) -> Sequence[Sample]:
    """As many as are few tokens together, but one at least."""
    tokens = accumulate(len(sample.tokens) for sample in samples)
    return samples[: max(1, sum(total <= _SHOWN_TOKENS for total in tokens))]


@dataclass(slots=True)
class ShownSteps:
    """Of which steps samples are shown: of each in a short stage, of one in 2, 4, 8 in a long one,
    so that they are few. What stays follows from the steps alone, so a resumed stage keeps the
    same."""

    one_in: int = 1
    tokens: dict[int, int] = field(default_factory=dict[int, int])
    """by step"""

    def take(self, step: int, tokens: int) -> bool:
        """Whether this step's samples are shown, which have so many tokens. Those of earlier steps
        may be so no longer."""
        if step % self.one_in:
            return False
        self.tokens[step] = tokens
        while len(self.tokens) > 1 and (
            len(self.tokens) > MOST_STEPS or sum(self.tokens.values()) > MOST_TOKENS
        ):
            self.one_in *= 2
            self.tokens = {s: n for s, n in self.tokens.items() if s % self.one_in == 0}
        return step in self.tokens

    def state(self) -> dict[str, Any]:
        """As JSON."""
        return {"one_in": self.one_in, "tokens": list(self.tokens.items())}

    @staticmethod
    def of_state(state: Mapping[str, Any]) -> ShownSteps:
        return ShownSteps(state["one_in"], dict(state["tokens"]))


def to_score(samples: Sequence[Sample], groups: Sequence[Group]) -> list[int]:
    """Positions among the step's samples: those that will be shown, then others from the first on,
    as long as they are few tokens."""
    shown = {(s.rollout_id, s.branch) for s in best_and_worst(groups)}
    order = sorted(
        range(len(samples)), key=lambda i: (samples[i].rollout_id, samples[i].branch) not in shown
    )
    chosen: list[int] = []
    tokens = 0
    for position in order:
        tokens += len(samples[position].tokens)
        if tokens > _SCORED_TOKENS:
            break
        chosen.append(position)
    return chosen
