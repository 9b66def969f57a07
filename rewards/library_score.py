"""Rewards that another library computes: a task's own score, or reasoning-gym's."""

from __future__ import annotations

import functools
import json
import math
from typing import Any, ClassVar

from engines.types import Transcript, Verdict
from infra.errors import InputError
from infra.hooks import did_you_mean
from infra.libraries.library import SCORE_FILE, load_reasoning_gym
from rewards.references import reference_of
from rewards.text import boxed, format_fault


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


class ReasoningGymScore:
    r"""The dataset's score of the answer, 0 to 1; a malformed or empty reply scores 0.

    The answer is what stands in the last `\boxed{...}`, or the whole reply without one. The
    reference names the entry: `{"dataset", "config", "seed", "index"}`.
    """

    reference_keys: ClassVar = ("dataset", "config", "seed", "index")

    async def __call__(self, transcript: Transcript) -> Verdict:
        reference = reference_of(transcript, self.reference_keys)
        if fault := format_fault(transcript):
            return Verdict(0.0, reason=fault)
        boxes = boxed(transcript.answer)
        answer = boxes[-1] if boxes else transcript.answer.strip()
        return Verdict(_score(reference, answer))


def _score(reference: dict[str, Any], answer: str) -> float:
    config = json.dumps(reference["config"], sort_keys=True)
    dataset = _dataset(reference["dataset"], config, reference["seed"])
    score = float(dataset.score_answer(answer, entry=dataset[reference["index"]]))
    if not math.isfinite(score):
        raise InputError(f"the dataset {reference['dataset']} scored {score}")
    return min(1.0, max(0.0, score))


@functools.lru_cache(maxsize=32)
def _dataset(name: str, config: str, seed: int) -> Any:
    library = load_reasoning_gym()
    return library.create_dataset(name, **json.loads(config), seed=seed, size=1)
