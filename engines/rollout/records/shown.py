"""Which samples of a step a person is shown, and of which the trainer says what it thought."""

from __future__ import annotations

from collections.abc import Sequence

from engines.types import Group, Sample

SHOWN_GROUPS = 3
"""of a step, as many are shown"""
_SCORED_TOKENS = 65_536
"""of a step, whose logprobs come back from the ranks: 256 KiB"""


def best_and_worst(groups: Sequence[Group], count: int = SHOWN_GROUPS) -> list[Sample]:
    """Of `count` groups, spread over the step; groups with signal first."""
    chosen = [g for g in groups if g.has_signal] or list(groups)
    shown: list[Sample] = []
    for group in chosen[:: max(1, len(chosen) // count)][:count]:
        ranked = sorted(group.samples, key=lambda s: s.reward)
        shown += ranked[-1:] + ranked[:-1][:1]
    return shown


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
