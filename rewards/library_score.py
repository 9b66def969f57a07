"""The reward `library-score`: what the task of a library gave, whose rollout it was."""

from __future__ import annotations

import json
import math
from typing import Any

from engines.types import Transcript, Verdict
from infra.errors import InputError
from infra.hooks import did_you_mean
from infra.libraries.library import SCORE_FILE


class LibraryScore:
    """The task's own score, from 0 to 1; its metrics are the parts of the verdict."""

    def __init__(self, of: str = "", lowest: float = 0.0, highest: float = 1.0) -> None:
        """`of`: one of its metrics or scorers instead of its score. `lowest` and `highest`: what it
        may be, which become 0 and 1."""
        if not lowest < highest or not math.isfinite(highest - lowest):
            raise InputError(f"lowest must be below highest, not {lowest} and {highest}")
        self._of, self._lowest, self._highest = of, float(lowest), float(highest)

    async def __call__(self, transcript: Transcript) -> Verdict:
        """Raises InputError where there is no such score, or it is outside its bounds."""
        if SCORE_FILE not in transcript.files:
            raise InputError("there is no score of a library; set the domain's `driver: library`")
        found: Any = json.loads(transcript.files[SCORE_FILE])
        parts: dict[str, float] = found["parts"]
        score: Any = found["score"]
        if self._of:
            if self._of not in parts:
                raise InputError(
                    f"of: there is no {self._of!r}.{did_you_mean(self._of, parts)} There are:"
                    f" {', '.join(parts) or 'none'}"
                )
            score = parts[self._of]
        if score is None:
            raise InputError("the task gave no score that is a number")
        if not self._lowest <= score <= self._highest:
            raise InputError(
                f"the task scored {score:g}, outside {self._lowest:g} to {self._highest:g}; set"
                " `lowest` and `highest` of the reward `library-score`"
            )
        return Verdict((score - self._lowest) / (self._highest - self._lowest), parts)
