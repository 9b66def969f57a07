"""Samples and generations from plain lists, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from engines.types import Generation, Sample, Status
from engines.weight_versions import WeightVersions


def sample_of(
    problem_id: str,
    domain: str,
    group_id: str,
    rollout_id: str,
    sample_index: int,
    tokens: Sequence[int],
    loss_mask: Sequence[int],
    logprobs: Sequence[float],
    weight_versions: Sequence[int],
    status: Status,
    *more: Any,
    **named: Any,
) -> Sample:
    """A Sample whose per-token values are given as lists."""
    return Sample(
        problem_id,
        domain,
        group_id,
        rollout_id,
        sample_index,
        np.array(tokens, np.int32),
        np.array(loss_mask, np.bool_),
        np.array(logprobs, np.float32),
        WeightVersions.of_runs((version, 1) for version in weight_versions),
        status,
        *more,
        **named,
    )


def generation_of(
    token_ids: Sequence[int],
    logprobs: Sequence[float],
    weight_versions: Sequence[int],
    finish: Literal["stop", "length", "abort"],
) -> Generation:
    return Generation(
        np.array(token_ids, np.int32),
        np.array(logprobs, np.float32),
        WeightVersions.of_runs((version, 1) for version in weight_versions),
        finish,
    )
