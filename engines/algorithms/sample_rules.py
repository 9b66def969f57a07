"""What becomes of each kind of sample. Imports nothing heavy.

| sample | its reward | its tokens |
|---|---|---|
| completed, malformed | counts in its group | trained |
| truncated | counts | trained, or with `truncated: mask` left out of loss and denominators |
| aborted, failed | does not count | left out |
| no trained token (all masked, or an empty response) | does not count | there are none |
| of a group of equal rewards, or alone in its group | counts | trained with advantage 0, in the
  denominators; the rollout loop drops such groups before, so that they cost no pass |
| staler than `max_staleness` | never arrives: the rollout buffer never hands it out | |
| rejected by a correction | counts | loss 0, stays in the denominators |
"""

from __future__ import annotations

from typing import Literal

from engines.types import TRAINABLE, Sample, Status


def counts(sample: Sample) -> bool:
    """Whether its reward enters its group's statistics."""
    # Nothing predicts a first token, so a mask on it alone trains nothing.
    return sample.status in TRAINABLE and bool(sample.loss_mask[1:].any())


def trains(sample: Sample, truncated: Literal["train", "mask"]) -> bool:
    """Whether its tokens are trained on."""
    return counts(sample) and not (truncated == "mask" and sample.status is Status.TRUNCATED)
