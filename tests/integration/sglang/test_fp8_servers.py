"""Servers in FP8 on a CPU: they hold what a trainer publishes to the bit, whatever brings it, and
generate what a plain server does with the matrices that FP8 stands for."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engines.devices.host_agent import HostAgent
from engines.sglang.client import GenerationClient
from engines.sglang.servers.server import Place
from engines.sglang.servers.slots import ServerSlots, Slot
from engines.sglang.spec import FleetSpec
from engines.types import Generation, Sampling
from engines.weights.disk import load_folder
from engines.weights.fp8_blocks import dequantised, is_matrix_of_fp8, quantised
from engines.weights.transport import as_taken, find_targets, server_weights
from tests.parts.tiny import tiny_model
from tests.parts.whole_weights import TRANSPORTS, whole_weights

pytestmark = pytest.mark.integration

FP8 = FleetSpec(quantization="fp8-block")
EXPERTS = {"head_dim": 64, "moe_intermediate_size": 128}
SIZES: dict[str, dict[str, Any]] = {
    "qwen3": {"head_dim": 64},
    "qwen3_moe": EXPERTS,
    "glm4": {"head_dim": 64},
    "glm4_moe": EXPERTS,
    "gemma3_text": {"head_dim": 64},
}
"""two KV heads are a block of 128; in place of this, two heads of 64"""


@dataclass(frozen=True, slots=True)
class Models:
    """Folders of one architecture."""

    first: Path
    other: Path
    rounded: Path
    """`other` with the matrices that its FP8 stands for, in fp32"""


def models(folder: Path, family: str, **sizes: Any) -> Models:
    sizes = sizes or SIZES.get(family, {"num_attention_heads": 2})
    if family != "gemma3_text":  # whose layers are listed
        sizes = sizes | {"num_hidden_layers": 2}
    first = tiny_model(folder / "first", family, **sizes)
    other = tiny_model(folder / "other", family, seed=1, **sizes)
    rounded = folder / "rounded"
    shutil.copytree(other, rounded)
    tensors = load_file(rounded / "model.safetensors")
    for name, tensor in tensors.items():
        if is_matrix_of_fp8(name, tuple(tensor.shape)):
            back = dequantised(*quantised(tensor), (128, 128), torch.float32)
            assert not torch.equal(back, tensor)
            tensors[name] = back.contiguous()
    save_file(tensors, rounded / "model.safetensors", metadata={"format": "pt"})
    return Models(first, other, rounded)


@pytest.fixture(scope="module")
def slot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slot]:
    slots = ServerSlots(HostAgent(tmp_path_factory.mktemp("fp8-logs"), 0))
    try:
        (name,) = slots.grow(1)
        slot = slots[name]
        assert isinstance(slot, Slot)
        yield slot
    finally:
        slots.close()


def said(slot: Slot) -> tuple[list[int], list[float]]:
    async def greedy() -> Generation:
        async with GenerationClient(slot.url) as client:
            return await client.generate([5, 6, 7, 8], Sampling(12, temperature=0.0))

    found = asyncio.run(greedy())
    return found.token_ids.tolist(), found.logprobs.tolist()


def loaded(slot: Slot, folder: Path) -> tuple[list[int], list[float]]:
    load_folder(folder, [slot.url], 1)
    return said(slot)


def test_every_transport_brings_the_bits_and_the_words_of_a_full_load(
    slot: Slot, tmp_path: Path
) -> None:
    known = models(tmp_path, "qwen3")
    slot.ensure(FleetSpec(), known.first, Place(tp=1))
    rounded, plain = loaded(slot, known.rounded), loaded(slot, known.other)
    slot.ensure(FP8, known.other, Place(tp=1))
    started = server_weights(slot.url).checksum
    assert rounded == loaded(slot, known.other) != plain
    assert server_weights(slot.url).checksum == started
    size = sum(weight.local.nbytes for weight in whole_weights(known.other).weights)
    for name, make in TRANSPORTS.items():
        load_folder(known.first, [slot.url], 2)
        assert server_weights(slot.url).checksum != started, name
        transport = make(tmp_path / "shared")
        try:
            for version in (6, 7):  # of a delta the second is one
                folder = known.first if version == 6 else known.other
                targets = find_targets([slot.url])
                weights = as_taken(whole_weights(folder, 100_000), targets)
                report = transport.push(weights, targets, version)
        finally:
            transport.close()
        assert server_weights(slot.url).checksum == started, name
        assert said(slot) == rounded, name
        # Matrices have a fourth; the embedding, 262,144 bytes here, and norms stay.
        assert report.bytes < 0.5 * size


FAMILIES = ["llama", "qwen3_moe"]  # a loader of scales of its own; experts
OTHERS = ["gemma3_text", "glm4", "glm4_moe", "mistral", "olmo2", "phi3", "qwen2"]


@pytest.mark.parametrize(
    "family", [*FAMILIES, *(pytest.param(each, marks=pytest.mark.long) for each in OTHERS)]
)
def test_each_family_generates_by_the_matrices_that_its_fp8_stands_for(
    family: str, slot: Slot, tmp_path: Path
) -> None:
    known = models(tmp_path, family)
    slot.ensure(FleetSpec(), known.first, Place(tp=1))
    rounded = loaded(slot, known.rounded)
    slot.ensure(FP8, known.first, Place(tp=1))
    assert loaded(slot, known.other) == rounded
    loaded(slot, known.first)
    _push(slot, known.other)
    assert said(slot) == rounded


def _push(slot: Slot, folder: Path) -> None:
    transport, targets = TRANSPORTS["shared memory"](folder), find_targets([slot.url])
    try:
        transport.push(as_taken(whole_weights(folder, 100_000), targets), targets, 7)
    finally:
        transport.close()


def test_two_ranks_have_the_scales_of_their_own_blocks(slot: Slot, tmp_path: Path) -> None:
    known = models(tmp_path, "qwen3", head_dim=64, num_key_value_heads=4)
    slot.ensure(FleetSpec(), known.first, Place(tp=2))
    rounded = loaded(slot, known.rounded)
    slot.ensure(FP8, known.first, Place(tp=2))
    _push(slot, known.other)
    assert said(slot) == rounded
