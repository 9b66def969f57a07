"""The filter by difficulty: neither too easy nor too hard, as in DAPO's dynamic sampling."""

from __future__ import annotations

from engines.types import TRAINABLE, Group, one_per_rollout
from infra.errors import InputError


class OutcomeBetween:
    """The mean outcome of the group's rollouts is above one bound and below the other.

    The outcome is the verifier's own verdict: groups whose rewards differ only in shaping go.
    """

    def __init__(self, above: float = 0.0, below: float = 1.0) -> None:
        if not 0 <= above < below <= 1:
            raise InputError(
                f"above {above:g} and below {below:g}: 0 <= above < below <= 1 must hold"
            )
        self._above, self._below = above, below

    def keep(self, group: Group) -> bool | str:
        judged = [s for s in one_per_rollout(group.samples) if s.status in TRAINABLE]
        if not judged:
            return "nothing_judged"
        mean = sum(s.rewards.get("outcome", 0.0) for s in judged) / len(judged)
        if mean <= self._above:
            return "too_hard"
        return mean < self._below or "too_easy"
