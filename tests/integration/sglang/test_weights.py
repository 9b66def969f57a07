"""New weights in running servers: one contract, kept by every transport."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from engines.sglang import client
from engines.sglang.client import GenerationClient
from engines.sglang.http import call
from engines.sglang.servers.server import Place
from engines.sglang.spec import FleetSpec
from engines.types import Generation, Sampling
from engines.weights import update
from engines.weights.broadcast.broadcast import ArrivingGroup, Broadcast
from engines.weights.buckets import Bucket
from engines.weights.disk import load_folder
from engines.weights.transport import ServerWeights, Transport, find_targets, server_weights
from infra.errors import EngineError
from infra.processes.network import free_ports
from tests.integration.conftest import SglangPair
from tests.integration.megatron.megatron_ranks import (
    EACH_LAYOUT,
    LAYOUTS,
    TP2_PP2,
    Ranks,
    TrainerArgs,
)
from tests.parts.whole_weights import TRANSPORTS, push, whole_weights

pytestmark = pytest.mark.integration
SMALL = 100_000
"""bytes of a bucket: the tiny model needs many, and its embedding one alone"""


async def _greedy(url: str, num_tokens: int = 12) -> Generation:
    async with GenerationClient(url) as client:
        return await client.generate([5, 6, 7, 8], Sampling(num_tokens, temperature=0.0))


async def _on_each(pair: SglangPair) -> list[Generation]:
    return [await _greedy(url) for url in pair.urls]


@dataclass(frozen=True, slots=True)
class Expected:
    """What a server with the other weights generates and holds, by the engine's own loader."""

    token_ids: list[int]
    logprobs: list[float]
    checksum: str

    def is_said_by(self, generation: Generation) -> bool:
        """To the bit."""
        said = generation.token_ids.tolist(), generation.logprobs.tolist()
        return said == (self.token_ids, self.logprobs)


@pytest.fixture(scope="module")
def expected(running_pair: SglangPair) -> Expected:
    running_pair.reset()
    url = running_pair.urls[0]
    load_folder(running_pair.other_model, [url], 1)
    said, held = asyncio.run(_greedy(url)), server_weights(url)
    return Expected(said.token_ids.tolist(), said.logprobs.tolist(), held.checksum)


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Transport]:
    made = TRANSPORTS[request.param](tmp_path / "shared")
    yield made
    made.close()


def _held(pair: SglangPair) -> list[ServerWeights]:
    return [server_weights(url) for url in pair.urls]


async def test_pushed_weights_are_the_folders_to_the_bit_and_serve_as_the_version(
    transport: Transport, expected: Expected, sglang_pair: SglangPair
) -> None:
    before = await _on_each(sglang_pair)
    targets = find_targets(sglang_pair.urls)
    weights = whole_weights(sglang_pair.other_model, SMALL)
    report = await asyncio.to_thread(transport.push, weights, targets, 7)
    assert _held(sglang_pair) == [ServerWeights("7", expected.checksum)] * 2
    after = await _on_each(sglang_pair)
    assert not any(expected.is_said_by(g) for g in before)
    assert all(expected.is_said_by(g) for g in after)
    assert all(g.weight_versions.sampled == {7} for g in after)
    size = sum(weight.local.nbytes for weight in weights.weights)
    assert (report.bytes, report.servers, report.version) == (size, 2, 7)
    assert 0 < report.pause_seconds < report.seconds


def _push_from_ranks(
    trainer: Any, name: str, folder: Path, urls: Sequence[str], version: int
) -> Any:
    weights = replace(trainer.trained_weights(), bucket_bytes=SMALL)
    transport = TRANSPORTS[name](folder)
    try:
        targets = weights.ranks.from_leader(lambda: find_targets(urls))
        return transport.push(weights, targets, version)
    finally:
        transport.close()


@pytest.mark.parametrize("layout", ["tp2", "pp2", "tp2 pp2"] if EACH_LAYOUT else ["tp2 pp2"])
@pytest.mark.parametrize("name", TRANSPORTS)
async def test_ranks_that_share_a_model_push_the_same_bits(
    name: str,
    layout: str,
    ranks: Ranks,
    expected: Expected,
    sglang_pair: SglangPair,
    tmp_path: Path,
) -> None:
    """Shared by tensors and by layers at once; by one of them alone in `make layouts`."""
    places = {**LAYOUTS, "tp2 pp2": TP2_PP2}
    args = TrainerArgs(sglang_pair.other_model, places[layout])
    how = (name, tmp_path, sglang_pair.urls, 5)
    report = await asyncio.to_thread(ranks.run, _push_from_ranks, args, *how)
    assert _held(sglang_pair) == [ServerWeights("5", expected.checksum)] * 2
    whole = whole_weights(sglang_pair.other_model).weights
    assert report.bytes == sum(weight.local.nbytes for weight in whole)


@pytest.fixture(scope="module")
def of_two_ranks(running_pair: SglangPair) -> Iterator[str]:
    """A server at TP 2, by its address."""
    slots = running_pair.slots
    slot = slots[slots.grow(3)[-1]]
    try:
        slot.ensure(FleetSpec(), running_pair.model, Place(tp=2))
        yield slot.url
    finally:
        slot.stop()


async def test_a_server_of_two_ranks_serves_what_it_serves_after_a_full_load(
    transport: Transport, of_two_ranks: str, running_pair: SglangPair
) -> None:
    pair, url = running_pair, of_two_ranks
    await asyncio.to_thread(load_folder, pair.other_model, [url], 1)
    loaded, held = await _greedy(url), server_weights(url)
    await asyncio.to_thread(load_folder, pair.model, [url], 2)
    assert server_weights(url).checksum != held.checksum
    targets = find_targets([url])
    assert targets[0].num_ranks == 2
    await asyncio.to_thread(transport.push, whole_weights(pair.other_model, SMALL), targets, 7)
    pushed = await _greedy(url)
    assert server_weights(url) == ServerWeights("7", held.checksum)
    assert pushed.token_ids.tolist() == loaded.token_ids.tolist()
    assert pushed.logprobs.tobytes() == loaded.logprobs.tobytes()


async def test_a_server_that_missed_a_push_gets_it_alone_and_the_next_with_the_others(
    transport: Transport, expected: Expected, sglang_pair: SglangPair
) -> None:
    first, second = sglang_pair.urls
    model, other = sglang_pair.model, sglang_pair.other_model
    await asyncio.to_thread(push, model, [first, second], 1, transport)
    await asyncio.to_thread(push, other, [first], 2, transport)
    assert [held.version for held in _held(sglang_pair)] == ["2", "1"]
    await asyncio.to_thread(push, other, [second], 2, transport)
    assert _held(sglang_pair) == [ServerWeights("2", expected.checksum)] * 2
    await asyncio.to_thread(push, model, [first, second], 3, transport)
    await asyncio.to_thread(push, other, [first, second], 4, transport)
    assert _held(sglang_pair) == [ServerWeights("4", expected.checksum)] * 2


async def test_a_restarted_server_takes_the_next_push_of_every_transport(
    expected: Expected, sglang_pair: SglangPair, tmp_path: Path
) -> None:
    """One start for all: each has pushed to the server that is gone, and each to the new one."""
    pair = sglang_pair
    with ExitStack() as stack:
        made = [make(tmp_path / name) for name, make in TRANSPORTS.items()]
        for transport in made:
            stack.callback(transport.close)
        for version, transport in enumerate(made, 1):
            await asyncio.to_thread(push, pair.model, pair.urls, version, transport)
        await asyncio.to_thread(pair.server("server-1").stop)
        await asyncio.to_thread(pair.restart, "server-1")
        for version, transport in enumerate(reversed(made), 11):  # one server has the last's base
            await asyncio.to_thread(push, pair.other_model, pair.urls, version, transport)
            assert _held(pair) == [ServerWeights(str(version), expected.checksum)] * 2
            await asyncio.to_thread(load_folder, pair.model, pair.urls, 0)


async def test_a_push_that_breaks_off_leaves_weights_of_no_version_and_the_next_one_repairs_them(
    transport: Transport,
    expected: Expected,
    sglang_pair: SglangPair,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(self: update.Update, check: object = None) -> None:
        raise RuntimeError("the trainer died")

    with monkeypatch.context() as patch:
        patch.setattr(update.Update, "end", fail)
        with pytest.raises(RuntimeError, match="the trainer died"):
            await asyncio.to_thread(push, sglang_pair.other_model, sglang_pair.urls, 9, transport)
    assert [held.version for held in _held(sglang_pair)] == ["broken"] * 2
    monkeypatch.setattr(client, "_PATIENCE_S", 0.5)
    for url in sglang_pair.urls:
        with pytest.raises(EngineError, match="its weights are broken: they may be half new"):
            await _greedy(url)
    await asyncio.to_thread(push, sglang_pair.other_model, sglang_pair.urls, 10, transport)
    assert _held(sglang_pair) == [ServerWeights("10", expected.checksum)] * 2
    assert {v for g in await _on_each(sglang_pair) for v in g.weight_versions.sampled} == {10}


async def test_a_broadcast_that_breaks_off_before_servers_pause_leaves_them_as_they_were(
    expected: Expected, sglang_pair: SglangPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights arrive while servers generate: half of them are nothing that is served."""
    stock, sent = ArrivingGroup.send, list[Bucket]()

    def send(self: ArrivingGroup, servers: update.Servers, bucket: Bucket) -> list[Future[Any]]:
        if sent:
            raise RuntimeError("the trainer died")
        sent.append(bucket)
        return stock(self, servers, bucket)

    transport = Broadcast()
    held, said = _held(sglang_pair), await _on_each(sglang_pair)
    weights, targets = whole_weights(sglang_pair.other_model, SMALL), find_targets(sglang_pair.urls)
    with monkeypatch.context() as patch:
        patch.setattr(ArrivingGroup, "send", send)
        with pytest.raises(RuntimeError, match="the trainer died"):
            await asyncio.to_thread(transport.push, weights, targets, 9)
    assert _held(sglang_pair) == held
    again = await _on_each(sglang_pair)
    assert [g.logprobs.tolist() for g in again] == [g.logprobs.tolist() for g in said]
    await asyncio.to_thread(push, sglang_pair.other_model, sglang_pair.urls, 10, transport)
    transport.close()
    assert _held(sglang_pair) == [ServerWeights("10", expected.checksum)] * 2


async def test_a_trainer_that_is_killed_in_a_push_leaves_weights_of_no_version(
    sglang_pair: SglangPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(self: update.Update) -> None:
        raise SystemExit

    monkeypatch.setattr(update.Update, "end", killed)
    monkeypatch.setattr(update.Update, "give_up", lambda self: None)
    with pytest.raises(SystemExit):
        push(sglang_pair.other_model, sglang_pair.urls, 2)
    found = [call(url, "/model_info", timeout=10)["weight_version"] for url in sglang_pair.urls]
    assert found == ["broken"] * 2


async def test_a_turn_that_spans_a_push_knows_the_version_of_each_token(
    sglang_pair: SglangPair,
) -> None:
    async with GenerationClient(sglang_pair.urls[0]) as client:
        turn = asyncio.create_task(client.generate([1, 2, 3], Sampling(450, seed=4)))
        while not await asyncio.to_thread(sglang_pair.is_generating):
            pass
        await asyncio.to_thread(push, sglang_pair.other_model, sglang_pair.urls, 1)
        generation = await turn
    assert [version for version, _ in generation.weight_versions.runs] == [0, 1]
    assert len(generation.logprobs) == len(generation.token_ids)


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


async def test_a_push_to_a_server_that_is_gone_names_it(sglang_pair: SglangPair) -> None:
    gone = f"http://127.0.0.1:{free_ports(1)[0]}"
    with pytest.raises(EngineError, match=gone):
        await asyncio.to_thread(push, sglang_pair.model, [gone], 1)
