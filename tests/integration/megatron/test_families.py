"""Every family keeps the contract with the real engines."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from engines.devices.host_agent import HostAgent
from engines.families.common.config import read_config
from engines.families.common.registry import family_names, model_shape
from engines.megatron.hf.folder import HfWeights
from engines.sglang.client import GenerationClient
from engines.sglang.servers.place import Place
from engines.sglang.servers.slots import ServerSlots
from engines.sglang.spec import FleetSpec
from engines.types import Generation, Sampling
from tests.integration.megatron.megatron_models import make_model
from tests.integration.megatron.megatron_ranks import ALONE, LAYOUTS, Ranks, TrainerArgs
from tests.parts.tiny import tiny_model

pytestmark = pytest.mark.integration
FAMILIES = family_names()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any]]:
    """Folder and transformers model of each family."""
    root = tmp_path_factory.mktemp("models")
    return {name: (root / name, make_model(name, root / name)) for name in FAMILIES}


def exported(trainer: Any) -> dict[str, Any]:
    return {name: tensor.detach().cpu().numpy().copy() for name, tensor in trainer.hf_tensors()}


def scored(trainer: Any, sequences: list[list[int]]) -> list[list[float]]:
    return trainer.logprobs(sequences)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("is_tied", [False, True])
def test_the_tensors_we_expect_are_those_transformers_writes(
    family: str, is_tied: bool, tmp_path: Path
) -> None:
    folder = tiny_model(tmp_path, family, tie_word_embeddings=is_tied)
    weights = HfWeights(folder)
    written = {name: tuple(weights.read(name).shape) for name in weights.file_of}
    shape = model_shape(read_config(folder))
    assert {t.name: t.size(shape.axes) for t in shape.expected_tensors()} == written
    assert shape.family.architecture in read_config(folder)["architectures"]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("layout", ["alone", "tp2", "pp2"])
def test_weights_come_back_from_megatron_to_the_bit(
    family: str, layout: str, ranks: Ranks, models: dict[str, tuple[Path, Any]]
) -> None:
    folder, _ = models[family]
    found = ranks.run(exported, TrainerArgs(folder, {"alone": ALONE, **LAYOUTS}[layout]))
    source = HfWeights(folder)
    assert set(found) == set(source.file_of)
    for name, tensor in found.items():
        assert torch.equal(torch.from_numpy(tensor), source.read(name)), name


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("layout", ["alone", "tp2", "pp2", "cp2"])
def test_logprobs_of_the_trainer_are_those_of_transformers(
    family: str, layout: str, ranks: Ranks, models: dict[str, tuple[Path, Any]]
) -> None:
    folder, reference = models[family]
    sequences = [[(7 * i + 3 * j) % 96 for j in range(4 + 9 * i)] for i in range(4)]
    args = TrainerArgs(folder, {"alone": ALONE, **LAYOUTS}[layout])
    for tokens, found in zip(sequences, ranks.run(scored, args, sequences), strict=True):
        expected = logprobs_of(reference, tokens)
        assert found[-len(expected) :] == pytest.approx(expected, abs=2e-5)


def logprobs_of(reference: Any, tokens: list[int]) -> list[float]:
    """Of each token but the first, given those before it."""
    with torch.no_grad():
        logits = reference(torch.tensor([tokens])).logits[0, :-1].float()
    chosen = torch.tensor(tokens[1:])[:, None]
    return logits.log_softmax(-1).gather(1, chosen)[:, 0].tolist()


@pytest.fixture(scope="module")
def slots(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerSlots]:
    slots = ServerSlots(HostAgent(tmp_path_factory.mktemp("servers"), 0))
    try:
        slots.grow(1)
        yield slots
    finally:
        slots.close()


@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_of_sglang_are_those_of_transformers(
    family: str, slots: ServerSlots, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    folder = tiny_model(tmp_path / family, family)
    reference: Any = AutoModelForCausalLM.from_pretrained(folder).eval()
    router = slots.prepare({"server-0": Place(tp=1)}, FleetSpec(), folder, 0)
    prompts = [[(11 * i + j) % 256 for j in range(3 + 5 * i)] for i in range(6)]
    for prompt, said in zip(prompts, asyncio.run(generate(router.url, prompts)), strict=True):
        expected = logprobs_of(reference, [*prompt, *said.token_ids.tolist()])[len(prompt) - 1 :]
        assert said.logprobs == pytest.approx(expected, abs=2e-4)
        assert len(said.token_ids) > 0


async def generate(url: str, prompts: list[list[int]]) -> list[Generation]:
    async with GenerationClient(url) as client:
        asked = [(ids, Sampling(24, seed=i)) for i, ids in enumerate(prompts)]
        return await asyncio.gather(*(client.generate(ids, how) for ids, how in asked))
