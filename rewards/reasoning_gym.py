"""The `reasoning-gym` reward: the dataset's own `score_answer`."""

from __future__ import annotations

import functools
import json
import math
from typing import Any, ClassVar

from engines.types import Transcript, Verdict
from infra.errors import InputError
from infra.reasoning_gym_library import load_reasoning_gym
from rewards.format import format_fault
from rewards.references import reference_of
from rewards.text import boxed


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
