"""Weights as what changed: lossless, verified, and found again after a fault; without servers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engines.weights.disk_delta import difference, disk_delta
from engines.weights.disk_delta.delta_manifest import NAME, read_manifest
from engines.weights.disk_delta.difference import apply, bits_of, encode
from engines.weights.disk_delta.weight_copy import ServedCopy, WeightCopy
from engines.weights.transport import ServerWeights
from infra.errors import CorruptArtifact, EngineError
from tests.parts.delta_trainer import DeltaTrainer, copy_apart

pytestmark = pytest.mark.unit


def _both_ways(new: np.ndarray[Any, Any], old: np.ndarray[Any, Any] | None) -> bytes:
    data = encode(new, old)
    found = np.zeros_like(new) if old is None else old.copy()
    apply(data, found)
    assert np.array_equal(found, new)
    return data


@pytest.mark.parametrize("width", [1, 2, 4, 8])
@pytest.mark.parametrize("share", [0.0, 0.0004, 0.03, 0.9, 1.0])
def test_a_difference_gives_the_new_bits_whatever_changed(
    width: int, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(difference, "BLOCK", 10_000)  # several, and a shorter last one
    random = np.random.default_rng(width)
    old = bits_of(random.integers(0, 256, (25_001, width), np.uint8).reshape(-1)).view(f"u{width}")
    new = old.copy()
    at = random.choice(len(old), round(share * len(old)), replace=False)
    new[at] = random.integers(0, 256, (len(at), width), np.uint8).reshape(-1).view(f"u{width}")
    _both_ways(new, old)
    _both_ways(new, None)


def test_the_bits_count_not_the_values() -> None:
    old = np.array([0.0, np.nan, 1.0, np.inf], np.float32)
    new = np.array([-0.0, np.nan, 1.0, -np.inf], np.float32)
    found = old.copy()
    apply(encode(bits_of(new), bits_of(old)), bits_of(found))
    assert found.tobytes() == new.tobytes()


def test_gaps_around_the_byte_that_only_moves_on() -> None:
    for gap in (253, 254, 255, 256, 509, 510, 511, 1020):
        old = np.zeros(3000, np.uint16)
        new = old.copy()
        new[[gap, 2 * gap + 1]] = 7
        _both_ways(new, old)


def test_three_percent_of_bf16_steps_are_a_fraction_of_the_whole() -> None:
    random = np.random.default_rng(0)
    old = (random.normal(0, 0.02, 400_000).astype(np.float32).view(np.uint32) >> 16).astype("u2")
    new = old.copy()
    at = random.choice(len(old), len(old) * 3 // 100, replace=False)
    new[at] += random.choice(np.array([1, 0xFFFF], np.uint16), len(at))
    assert len(_both_ways(new, old)) <= 0.02 * new.nbytes
    new[at] = random.integers(0, 1 << 16, len(at), np.uint16)  # nothing to be saved in the values
    assert len(_both_ways(new, old)) <= 0.06 * new.nbytes


@pytest.fixture
def trainer(tmp_path: Path) -> DeltaTrainer:
    return DeltaTrainer(str(tmp_path / "shared"))


@pytest.fixture
def copy() -> WeightCopy:
    return copy_apart()


def test_a_copy_follows_from_version_to_version_and_over_those_it_missed(
    trainer: DeltaTrainer, copy: WeightCopy
) -> None:
    first = trainer.write(1)
    copy.catch_up(trainer.store, first)
    assert trainer.holds(copy)
    for version in (2, 3, 4):
        trainer.step("embedding", "head")
        folder = trainer.write(version)
    manifest = read_manifest(trainer.store, folder)
    assert manifest.base is not None
    assert manifest.written_bytes < read_manifest(trainer.store, first).written_bytes / 4
    copy.catch_up(trainer.store, folder)
    assert trainer.holds(copy)
    assert copy.identity == (4, manifest.checksum)
    late = copy_apart()
    late.catch_up(trainer.store, folder)
    assert trainer.holds(late)


def test_a_restarted_trainer_has_no_base_and_writes_the_version_whole(
    trainer: DeltaTrainer, copy: WeightCopy, tmp_path: Path
) -> None:
    copy.catch_up(trainer.store, trainer.write(1))
    again = DeltaTrainer(str(tmp_path / "shared"))
    again.step("head")
    folder = again.write(2)
    assert read_manifest(again.store, folder).base is None
    copy.catch_up(again.store, folder)
    assert again.holds(copy)


def test_every_so_many_versions_one_is_whole(
    trainer: DeltaTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_delta, "WHOLE_EVERY", 3)
    whole: list[bool] = []
    for version in range(7):
        trainer.step("head")
        whole.append(read_manifest(trainer.store, trainer.write(version)).base is None)
    assert whole == [True, False, False, True, False, False, True]


def test_a_delta_that_saves_nothing_is_written_whole(trainer: DeltaTrainer) -> None:
    trainer.write(1)
    random = torch.Generator().manual_seed(1)
    for tensor in trainer.tensors.values():
        bits = tensor.view(-1).view(torch.uint8)
        bits.copy_(torch.randint(0, 256, bits.shape, generator=random, dtype=torch.uint8))
    assert read_manifest(trainer.store, trainer.write(2)).base is None


def test_a_version_without_its_manifest_is_none(trainer: DeltaTrainer, copy: WeightCopy) -> None:
    copy.catch_up(trainer.store, trainer.write(1))
    held = copy.identity
    trainer.step("head")
    folder = trainer.write(2)
    Path(trainer.store.url(f"{folder}/{NAME}").removeprefix("file://")).unlink()
    with pytest.raises(FileNotFoundError):
        copy.catch_up(trainer.store, folder)
    assert copy.identity == held, "it was not touched"


@pytest.mark.parametrize("damaged", ["file", "manifest"])
def test_damage_is_noticed_and_a_whole_version_repairs_the_copy(
    damaged: str, trainer: DeltaTrainer, copy: WeightCopy
) -> None:
    copy.catch_up(trainer.store, trainer.write(1))
    trainer.step("head", "embedding")
    folder = trainer.write(2)
    name = NAME if damaged == "manifest" else trainer.store.listdir(folder)[-1]
    data = bytearray(trainer.store.read(f"{folder}/{name}"))
    data[len(data) // 2] ^= 1
    trainer.store.write(f"{folder}/{name}", bytes(data))
    with pytest.raises(CorruptArtifact, match=folder):
        copy.catch_up(trainer.store, folder)
    copy.catch_up(trainer.store, trainer.write(2, whole=True))
    assert trainer.holds(copy)


def test_a_copy_that_is_not_the_base_does_not_become_the_new_version(
    trainer: DeltaTrainer, copy: WeightCopy
) -> None:
    copy.catch_up(trainer.store, trainer.write(1))
    copy.buckets(lambda name: name == "head")[0][0][1].view(-1)[5] += 1  # its memory was damaged
    trainer.step("head")
    folder = trainer.write(2)
    with pytest.raises(CorruptArtifact, match="does not give head as its manifest says"):
        copy.catch_up(trainer.store, folder)
    assert copy.identity is None
    copy.catch_up(trainer.store, folder)  # from the whole version on
    assert trainer.holds(copy)


def test_a_server_gets_what_changed_only_if_it_holds_what_it_loaded_last(
    trainer: DeltaTrainer, copy: WeightCopy
) -> None:
    served = ServedCopy(copy)

    def sent(folder: str, held: ServerWeights) -> set[str]:
        buckets = served.prepare(trainer.store.root, folder, held)
        return {name for bucket in buckets for name, _ in bucket}

    pair = {"0.q_a_proj.weight", "0.kv_a_proj_with_mqa.weight"}
    trainer.tensors |= {name: torch.ones(4) for name in pair}
    everything = set(trainer.tensors)
    assert sent(trainer.write(1), ServerWeights("0", "started with")) == everything
    served.confirm(ServerWeights("1", "a"))
    trainer.step("head")
    second = trainer.write(2)
    assert sent(second, ServerWeights("1", "a")) == {"head"}
    assert sent(second, ServerWeights("1", "b")) == everything, "somebody else's version 1"
    assert sent(second, ServerWeights("broken", "a")) == everything
    assert sent(second, ServerWeights("1", "a")) == {"head"}, "prepared twice, not loaded yet"
    trainer.step("norm")
    assert sent(trainer.write(3), ServerWeights("1", "a")) == {"head", "norm"}
    trainer.step("0.q_a_proj.weight")
    assert sent(trainer.write(4), ServerWeights("1", "a")) == {"head", "norm"} | pair, "one of two"


def test_servers_that_hold_different_bits_do_not_continue() -> None:
    compare = disk_delta._compare
    compare({"a": "x", "b": "x", "c": "y"}, {"a": 1, "b": 1, "c": 2}, 7)
    with pytest.raises(EngineError, match="different bits of version 7"):
        compare({"a": "x", "b": "y"}, {"a": 1, "b": 1}, 7)
