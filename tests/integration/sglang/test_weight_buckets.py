"""Ranks that share a model put it together in buckets: the exported tensors to the bit, in bounded
memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from engines.weights.buckets import OwnMemory
from engines.weights.fp8_blocks import in_fp8
from tests.integration.megatron.megatron_models import make_model
from tests.integration.megatron.megatron_ranks import (
    ALONE,
    EACH_LAYOUT,
    EXPERTS,
    LAYOUTS,
    Ranks,
    TrainerArgs,
)
from tests.parts.live_memory import LiveMemory
from tests.parts.whole_weights import tensors_of

pytestmark = pytest.mark.integration

LIMIT = 25_000
"""bytes of a bucket: the largest weight of the models has 16,384, and a shard of it half of that"""


def _collected(trainer: Any, share_work: bool, quantised: bool = False) -> Any:
    """Each rank's tensors by name, its number of buckets and the most bytes that it held."""
    weights = replace(trainer.trained_weights(), bucket_bytes=LIMIT, in_fp8=quantised)
    known = [weight.local for weight in weights.weights]
    tensors: dict[str, Any] = {}
    count = 0
    with LiveMemory(known) as live:
        for bucket in weights.buckets(OwnMemory(), share_work=share_work):
            if bucket is not None:
                count += 1
                # numpy: a copy that does not count, and it knows no FP8
                tensors |= {
                    name: (tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor)
                    .numpy()
                    .copy()
                    for name, tensor in bucket.tensors
                }
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, (tensors, count, live.peak))
    return everyone


FAMILIES = ("qwen3", "qwen2", "glm4_moe", "deepseek_v3")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    for family in FAMILIES:
        make_model(family, root / family)
    return {family: root / family for family in FAMILIES}


CASES = [
    *[("qwen3", layout) for layout in ("alone", *LAYOUTS)],
    # Its biases are cut, and it has an output layer of its own on the last stage.
    *[("qwen2", layout) for layout in (("alone", *LAYOUTS) if EACH_LAYOUT else ("tp2", "pp2"))],
    *[("glm4_moe", layout) for layout in ("tp2", "pp2", *EXPERTS)],
    ("deepseek_v3", "tp2"),
]


@pytest.mark.parametrize("share_work", [False, True], ids=["one sender", "shared work"])
@pytest.mark.parametrize(("family", "layout"), CASES)
def test_buckets_hold_the_exported_tensors_and_no_rank_more_than_two_of_them(
    family: str, layout: str, share_work: bool, ranks: Ranks, folders: dict[str, Path]
) -> None:
    folder = folders[family]
    args = TrainerArgs(folder, {"alone": ALONE, **LAYOUTS, **EXPERTS}[layout])
    found = ranks.run(_collected, args, share_work)
    expected = dict(tensors_of(folder))
    named = [name for tensors, _, _ in found for name in tensors]
    assert sorted(named) == sorted(expected), "each tensor once, from one rank"
    for tensors, _, _ in found:
        for name, tensor in tensors.items():
            assert torch.equal(torch.from_numpy(tensor), expected[name]), name
    assert all(peak <= 2 * LIMIT for _, _, peak in found)
    # Ranks that share the work have one bucket at a time.
    assert max(peak for _, _, peak in found) > (LIMIT // 2 if share_work else LIMIT)
    senders = [count for _, count, _ in found if count]
    assert sum(senders) > 3
    if share_work or layout == "pp2":
        assert len(senders) == len(found), "all ranks had a part"


@pytest.mark.parametrize(
    ("family", "layout", "share_work"),
    [("qwen3", "tp2", True), ("qwen2", "pp2", False), ("glm4_moe", "ep2", False)],
)
def test_buckets_in_fp8_hold_what_a_server_makes_of_the_exported_tensors(
    family: str, layout: str, share_work: bool, ranks: Ranks, folders: dict[str, Path]
) -> None:
    """Shards are put together before blocks are made: no layout moves a scale."""
    folder = folders[family]
    args = TrainerArgs(folder, {**LAYOUTS, **EXPERTS}[layout])
    found = ranks.run(_collected, args, share_work, True)
    expected = dict(in_fp8(tensors_of(folder), torch.device("cpu"), torch.float32))
    named = [name for tensors, _, _ in found for name in tensors]
    assert sorted(named) == sorted(expected), "each tensor once, from one rank"
    for tensors, _, _ in found:
        for name, tensor in tensors.items():
            wanted = expected[name]
            wanted = wanted.view(torch.uint8) if wanted.element_size() == 1 else wanted
            assert torch.equal(torch.from_numpy(tensor), wanted), name
