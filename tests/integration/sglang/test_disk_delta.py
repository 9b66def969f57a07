"""Deltas in running servers, beyond what every transport keeps: few bytes, faults, missed ones."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engines.weights.disk import load_folder
from engines.weights.disk_delta.disk_delta import DiskDelta
from engines.weights.shared_memory import SharedMemory
from engines.weights.transport import ServerWeights, find_targets, server_weights
from infra.store.store import Store
from tests.integration.conftest import SglangPair
from tests.integration.megatron.megatron_ranks import TP2_PP2, Ranks, TrainerArgs
from tests.parts.whole_weights import push

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def steps(running_pair: SglangPair, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The pair's model after 0 to 3 steps of training, each of which changes 3% of the values."""
    tensors = load_file(running_pair.model / "model.safetensors")
    folders = [running_pair.model]
    for step in range(1, 4):
        folder = tmp_path_factory.mktemp("step")
        shutil.copytree(running_pair.model, folder, dirs_exist_ok=True)
        for tensor in tensors.values():
            _train(tensor, step)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        folders.append(folder)
    return folders


def _train(tensor: torch.Tensor, step: int = 0) -> None:
    tensor.view(-1)[step::33] *= 1.001


@pytest.fixture
def transport(tmp_path: Path) -> Iterator[DiskDelta]:
    made = DiskDelta(str(tmp_path))
    yield made
    made.close()


def _held(pair: SglangPair) -> list[ServerWeights]:
    return [server_weights(url) for url in pair.urls]


def _by_its_own_loader(pair: SglangPair, folder: Path) -> str:
    """The checksum of servers that have loaded the folder."""
    load_folder(folder, pair.urls, 0)
    checksum = server_weights(pair.urls[0]).checksum
    pair.reset()
    return checksum


def test_a_delta_is_small_and_a_server_that_missed_some_follows_all_of_them(
    transport: DiskDelta, steps: list[Path], sglang_pair: SglangPair
) -> None:
    urls = sglang_pair.urls
    expected = _by_its_own_loader(sglang_pair, steps[3])
    whole = push(steps[0], urls, 1, transport)
    delta = push(steps[1], urls[:1], 2, transport)
    assert delta.written_bytes <= 0.06 * delta.bytes < whole.written_bytes
    assert delta.kept_bytes == delta.bytes
    push(steps[2], urls[:1], 3, transport)
    assert [held.version for held in _held(sglang_pair)] == ["3", "1"]
    report = push(steps[3], urls, 4, transport)
    assert report.written_bytes <= 0.06 * report.bytes
    assert _held(sglang_pair) == [ServerWeights("4", expected)] * 2


def test_weights_that_came_another_way_are_no_base(
    transport: DiskDelta, steps: list[Path], sglang_pair: SglangPair
) -> None:
    expected = _by_its_own_loader(sglang_pair, steps[1])
    push(steps[0], sglang_pair.urls, 1, transport)
    load_folder(sglang_pair.other_model, sglang_pair.urls, 1)  # somebody else's version 1
    push(steps[1], sglang_pair.urls, 2, transport)
    assert _held(sglang_pair) == [ServerWeights("2", expected)] * 2


@pytest.mark.parametrize("fault", ["damaged", "no base"])
def test_a_server_that_cannot_take_a_delta_gets_the_version_whole(
    fault: str,
    transport: DiskDelta,
    steps: list[Path],
    sglang_pair: SglangPair,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    urls, expected = sglang_pair.urls, _by_its_own_loader(sglang_pair, steps[1])
    whole = push(steps[0], urls if fault == "damaged" else urls[:1], 1, transport)
    stock, damaged = Store.write, 0

    def damaging(self: Store, path: str, data: bytes) -> None:
        nonlocal damaged
        if path.endswith(".delta") and not damaged:
            data, damaged = data[:-1] + bytes([data[-1] ^ 1]), 1
        stock(self, path, data)

    if fault == "damaged":
        monkeypatch.setattr(Store, "write", damaging)
    else:
        shutil.rmtree(next(tmp_path.iterdir()))
    report = push(steps[1], urls, 2, transport)
    assert report.written_bytes > 0.9 * whole.written_bytes
    assert _held(sglang_pair) == [ServerWeights("2", expected)] * 2
    assert len(list(tmp_path.iterdir())) == 1, "the delta that some could not take is removed"


def test_a_trainer_killed_while_it_writes_leaves_servers_alone_and_the_next_one_nothing_of_it(
    transport: DiskDelta,
    steps: list[Path],
    sglang_pair: SglangPair,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = _by_its_own_loader(sglang_pair, steps[2])
    killed = DiskDelta(str(tmp_path))
    push(steps[0], sglang_pair.urls, 1, killed)
    before, stock = _held(sglang_pair), Store.write

    def kill(self: Store, path: str, data: bytes) -> None:
        if path.endswith("manifest.json"):
            raise SystemExit
        stock(self, path, data)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "write", kill)
        with pytest.raises(SystemExit):
            push(steps[1], sglang_pair.urls, 2, killed)
    assert _held(sglang_pair) == before
    assert len(list(tmp_path.iterdir())) == 2
    report = push(steps[2], sglang_pair.urls, 2, transport)
    assert report.written_bytes > 0.5 * report.bytes, "it has no base"
    assert _held(sglang_pair) == [ServerWeights("2", expected)] * 2
    assert len(list(tmp_path.iterdir())) == 1


def _push_twice_from_ranks(trainer: Any, folder: Path, urls: Sequence[str]) -> Any:
    """Whole, and as a delta after a step; then the same by shared memory. Servers' checksums after
    the delta and after all, and the delta's report."""
    weights = replace(trainer.trained_weights(), bucket_bytes=100_000)
    ranks, delta, shared = weights.ranks, DiskDelta(str(folder)), SharedMemory()

    def targets() -> Any:
        return ranks.from_leader(lambda: find_targets(urls))

    def checksum() -> str:
        return ranks.from_leader(lambda: server_weights(urls[0]).checksum)

    try:
        delta.push(weights, targets(), 1)
        with torch.no_grad():
            for weight in weights.weights:
                _train(weight.local)
        report = delta.push(weights, targets(), 2)
        after_delta = checksum()
        shared.push(weights, targets(), 3)
        return after_delta, checksum(), report
    finally:
        delta.close()
        shared.close()


@pytest.mark.long
async def test_ranks_that_share_a_model_write_their_shares_of_a_delta(
    ranks: Ranks, sglang_pair: SglangPair, tmp_path: Path
) -> None:
    args = TrainerArgs(sglang_pair.model, TP2_PP2)
    after_delta, after_all, report = await asyncio.to_thread(
        ranks.run, _push_twice_from_ranks, args, tmp_path, sglang_pair.urls
    )
    assert after_delta == after_all
    assert report.written_bytes <= 0.06 * report.bytes
    assert report.kept_bytes == report.bytes
