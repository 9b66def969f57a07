"""Ranks that tell each other what became of their parts of a push."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch.distributed as dist

from engines.weights.ranks import Ranks
from infra.errors import EngineError
from tests.parts.gloo_ranks import over_ranks

pytestmark = pytest.mark.unit


def _waits(rank: int) -> list[str]:
    """Rank 1 is late twice: within the bound of what is waited for, and beyond it."""
    control = dist.new_group(backend="gloo")
    assert isinstance(control, dist.ProcessGroup)
    ranks = Ranks(rank=rank, world=2, control_group=control)

    def late(seconds: float) -> str:
        time.sleep(seconds)
        return f"after {seconds}"

    action = (lambda: late(0.6)) if rank else None
    told = [str(ranks.settle(action, within_s=30))]
    assert ranks.gather(rank) == [0, 1]
    try:
        ranks.settle((lambda: late(1.0)) if rank else None, within_s=0.3)
    except EngineError as error:
        told.append(str(error))
    return told


def test_ranks_wait_as_long_as_what_they_wait_for_may_take(tmp_path: Path) -> None:
    first, second = over_ranks(_waits, 2, tmp_path)
    assert second[0] == "after 0.6"
    assert first[0] == "None"
    assert "rank 0 waited for the trainer's other ranks, at most 0 s" in first[1]
