"""CUDA IPC as far as a host without a GPU goes: its rules, its records, and that it refuses."""

from __future__ import annotations

import base64
import pickle
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing

from engines.sglang.external.give_weights import WholeTensor
from engines.weights import choice
from engines.weights.buckets import Bucket, TrainedWeights
from engines.weights.choice import transport_to
from engines.weights.cuda_ipc import CudaIpc, by_name, gpu_of
from engines.weights.ranks import ALONE, Ranks
from engines.weights.shared_memory import allocate, flat_handles
from engines.weights.spec import WeightTransport
from engines.weights.transport import Target
from infra.cuda import gpu_uuid
from infra.errors import EngineError
from tests.unit.engines.weights.test_transport_choice import served

pytestmark = pytest.mark.unit

OURS, OTHER = "6dd0a9c2-3f5c-1e65-8d2a-0b9c61a7f7d4", "11111111-2222-3333-4444-555555555555"
WANTED = WeightTransport(transport="cuda_ipc")


class _Two(Ranks):
    """The first of two ranks, which sends; the other one is on the GPU `OTHER`."""

    def gather(self, own: Any, within_s: float = 0.0) -> list[Any]:
        return [own, (OTHER, False) if isinstance(own, tuple) else own]


@pytest.fixture
def on_cpu() -> TrainedWeights:
    return TrainedWeights([WholeTensor("w", torch.zeros(4))])


def test_without_a_gpu_it_says_so_and_what_to_do(on_cpu: TrainedWeights) -> None:
    target = Target("http://127.0.0.1:30000", 1, "0")
    says = "weights on the CPU.*`auto` or `shared_memory`"
    with pytest.raises(EngineError, match=says):
        CudaIpc().push(on_cpu, [target], 1)
    assert gpu_of(on_cpu) == ""
    with pytest.raises(EngineError, match=says):
        transport_to([target], ALONE, WANTED, gpu_of(on_cpu))


def test_auto_takes_it_where_the_servers_are_on_the_trainers_gpu() -> None:
    auto = WeightTransport()
    with served(lambda _: {"gpus": [OURS]}) as near, served(lambda _: {"gpus": [OTHER]}) as beside:
        assert transport_to([near], ALONE, auto, OURS).name == "cuda ipc"
        assert transport_to([near], ALONE, WANTED, OURS).name == "cuda ipc"
        # NCCL takes no two members on one GPU: one would be the trainer and a server.
        assert transport_to([near, beside], ALONE, auto, OURS).name == "shared memory"
        with pytest.raises(EngineError, match=f"{beside.url}: not known to run on the trainer's"):
            transport_to([near, beside], ALONE, WANTED, OURS)
        assert transport_to([near], ALONE, auto, "").name == "shared memory"
        assert transport_to([beside], ALONE, auto, OURS).name == "broadcast"


def test_auto_looks_at_every_rank_of_a_server() -> None:
    auto = WeightTransport()

    def both(*gpus: str) -> str:
        with served(lambda _: {"gpus": list(gpus)}) as one:
            return transport_to([Target(one.url, 2, "0")], _Two(), auto, OURS).name

    assert both(OURS, OTHER) == "cuda ipc"
    assert both(OTHER, "a third") == "broadcast"
    assert both(OURS, "a third") == "shared memory"
    assert both(OURS, "") == "shared memory", "the driver's tool was not there"
    assert both(OURS) == "shared memory", "its other rank is on another host"


def test_a_server_of_others_or_of_several_ranks_is_never_taken_to_be_there() -> None:
    with served(lambda _: None) as foreign, served(lambda _: {"gpus": [OURS]}) as near:
        several = Target(near.url, 2, "0")
        for target in (foreign, several):
            assert transport_to([target], ALONE, WeightTransport(), OURS).name == "shared memory"
            with pytest.raises(EngineError, match="shares its GPU with one of the trainer's"):
                transport_to([target], ALONE, WANTED, OURS)


def test_on_another_host_it_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "is_on_this_host", lambda _: False)
    with served(lambda body: {"reaches": True} if "port" in body else {"gpus": [OURS]}) as far:
        assert transport_to([far], ALONE, WeightTransport(), OURS).name == "broadcast"


def test_a_device_is_told_by_its_name() -> None:
    needed = ("class", (4,), (1,), 0, "storage", "dtype", 0, b"handle", 16, 0, False)
    told = by_name(needed, OURS)
    assert told == ("class", (4,), (1,), 0, "storage", "dtype", OURS, b"handle", 16, 0, False)


@pytest.fixture
def by_file_name() -> Generator[None]:
    before = torch.multiprocessing.get_sharing_strategy()
    torch.multiprocessing.set_sharing_strategy("file_system")
    yield
    torch.multiprocessing.set_sharing_strategy(before)


@pytest.mark.usefixtures("by_file_name")
def test_a_buckets_record_says_where_each_tensor_lies() -> None:
    flat = allocate(64)[:40]
    a, b = flat.view(torch.float32)[:6].view(2, 3), flat.view(torch.float32)[6:10]
    a.copy_(torch.arange(6.0).view(2, 3))
    b.copy_(torch.arange(4.0) + 10)
    told = flat_handles(Bucket(flat, [("a", a), ("b", b)]), 2)
    assert len(told) == 2, "torch counts those that open it"
    for text in told:
        record: dict[str, Any] = pickle.loads(base64.b64decode(text))
        opened = record["flattened_tensor"]
        assert opened.nbytes == 40
        found = {
            place.name: opened[place.start_idx : place.end_idx].view(place.dtype).view(place.shape)
            for place in record["metadata"]
        }
        assert torch.equal(found["a"], a)
        assert torch.equal(found["b"], b)
        assert [place.numel for place in record["metadata"]] == [24, 16], "SGLang counts bytes"


def test_a_gpus_name_is_the_drivers_without_its_prefix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    text = f"#!{sys.executable}\nimport sys\nassert sys.argv[-1] == '5'\nprint('GPU-{OURS}')\n"
    tool.write_text(text)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    assert gpu_uuid(1) == OURS
    assert gpu_uuid(0) == "", "the tool refuses"
    tool.unlink()
    assert gpu_uuid(1) == "", "there is none"
