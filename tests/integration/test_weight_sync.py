"""New weights in running servers, by every transport."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engines.sglang.client import GenerationClient
from engines.types import Generation, Sampling
from engines.weight_sync import disk, publish, shared_memory, update
from engines.weight_sync.distributed import DistributedPublisher
from infra.errors import EngineError
from infra.processes.ports import free_ports
from tests.integration.conftest import SglangPair

pytestmark = pytest.mark.integration


def _tensors(folder: Path) -> Iterator[tuple[str, Any]]:
    from safetensors.torch import load_file

    yield from load_file(folder / "model.safetensors").items()


async def _greedy(url: str, num_tokens: int = 12) -> Generation:
    async with GenerationClient(url) as client:
        return await client.generate([5, 6, 7, 8], Sampling(num_tokens, temperature=0.0))


async def _on_each(pair: SglangPair) -> list[Generation]:
    return [await _greedy(url) for url in pair.urls]


@pytest.fixture
async def loaded_from_disk(sglang_pair: SglangPair) -> list[int]:
    """What the other weights generate, by the engine's own loader."""
    await asyncio.to_thread(disk.publish, sglang_pair.other_model, sglang_pair.urls, 1)
    return (await _greedy(sglang_pair.urls[0])).token_ids.tolist()


async def test_published_tensors_serve_like_the_same_weights_from_disk(
    loaded_from_disk: list[int], sglang_pair: SglangPair
) -> None:
    await asyncio.to_thread(sglang_pair.reset)
    before = await _on_each(sglang_pair)
    tensors = _tensors(sglang_pair.other_model)
    report = await asyncio.to_thread(publish, tensors, sglang_pair.urls, 7)
    after = await _on_each(sglang_pair)
    assert all(g.token_ids.tolist() != loaded_from_disk for g in before)
    assert all(g.token_ids.tolist() == loaded_from_disk for g in after)
    assert all(g.weight_versions.sampled == {7} for g in after)
    sizes = [tensor.nbytes for _, tensor in _tensors(sglang_pair.other_model)]
    assert (report.bytes, report.servers, report.version) == (sum(sizes), 2, 7)
    assert report.copy_seconds < report.seconds


async def test_weights_larger_than_the_buffer_go_in_rounds(
    loaded_from_disk: list[int], sglang_pair: SglangPair
) -> None:
    await asyncio.to_thread(sglang_pair.reset)
    tensors = _tensors(sglang_pair.other_model)
    await asyncio.to_thread(shared_memory.publish, tensors, sglang_pair.urls, 8, 100_000)
    assert [g.token_ids.tolist() for g in await _on_each(sglang_pair)] == [loaded_from_disk] * 2


async def test_broadcast_weights_serve_like_the_same_weights_from_disk(
    loaded_from_disk: list[int], sglang_pair: SglangPair
) -> None:
    await asyncio.to_thread(sglang_pair.reset)

    def broadcast() -> None:
        publisher = DistributedPublisher(sglang_pair.urls, "127.0.0.1", free_ports(1)[0], "gloo")
        try:
            publisher.publish(_tensors(sglang_pair.model), 2)
            publisher.publish(_tensors(sglang_pair.other_model), 3)
        finally:
            publisher.close()

    await asyncio.to_thread(broadcast)
    after = await _on_each(sglang_pair)
    assert [g.token_ids.tolist() for g in after] == [loaded_from_disk] * 2
    assert {v for g in after for v in g.weight_versions.sampled} == {3}


async def test_a_turn_that_spans_a_publish_knows_the_version_of_each_token(
    sglang_pair: SglangPair,
) -> None:
    async with GenerationClient(sglang_pair.urls[0]) as client:
        turn = asyncio.create_task(client.generate([1, 2, 3], Sampling(450, seed=4)))
        while not await asyncio.to_thread(sglang_pair.is_generating):
            pass
        tensors = _tensors(sglang_pair.other_model)
        await asyncio.to_thread(publish, tensors, sglang_pair.urls, 1)
        generation = await turn
    assert [version for version, _ in generation.weight_versions.runs] == [0, 1]
    assert len(generation.logprobs) == len(generation.token_ids)


async def test_a_publish_that_breaks_off_leaves_servers_that_answer_but_pass_for_no_version(
    sglang_pair: SglangPair,
) -> None:
    def half() -> Iterator[tuple[str, Any]]:
        yield from list(_tensors(sglang_pair.other_model))[:10]
        raise RuntimeError("the trainer died")

    with pytest.raises(RuntimeError, match="the trainer died"):
        await asyncio.to_thread(shared_memory.publish, half(), sglang_pair.urls, 9, 100_000)
    for url in sglang_pair.urls:
        with pytest.raises(EngineError, match="broken"):
            await _greedy(url)
    await asyncio.to_thread(publish, _tensors(sglang_pair.model), sglang_pair.urls, 10)
    assert {v for g in await _on_each(sglang_pair) for v in g.weight_versions.sampled} == {10}


async def test_a_refused_flush_is_an_error(
    sglang_pair: SglangPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(update, "FLUSH_S", 0.1)
    async with GenerationClient(sglang_pair.urls[0]) as client:
        turn = asyncio.create_task(client.generate([1, 2, 3], Sampling(400, seed=4)))
        while not await asyncio.to_thread(sglang_pair.is_generating):
            pass
        with pytest.raises(EngineError, match="flush"):
            await asyncio.to_thread(update.flush, sglang_pair.urls[0])
        await turn


async def test_a_publish_to_a_server_that_is_gone_names_it(sglang_pair: SglangPair) -> None:
    gone = f"http://127.0.0.1:{free_ports(1)[0]}"
    with pytest.raises(EngineError, match=gone):
        await asyncio.to_thread(publish, _tensors(sglang_pair.model), [gone], 1)
