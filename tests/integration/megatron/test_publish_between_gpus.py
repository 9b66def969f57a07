"""Weights to servers on the trainer's GPUs: every rank of a server finds them on its own, and none
go through the host's memory. GPUs are folders here, whose files are mapped as their memory is."""

from __future__ import annotations

import base64
import hashlib
import pickle
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engines.megatron.spec import Parallel
from engines.weights import weight_stream
from engines.weights.buckets import Memory, TrainedWeights
from engines.weights.cuda_ipc import CudaIpc, Opening
from engines.weights.reach import REACH
from engines.weights.transport import Target
from infra.errors import EngineError
from tests.integration.megatron.megatron_models import make_model
from tests.integration.megatron.megatron_ranks import TP2_PP2, Ranks, TrainerArgs
from tests.parts.json_server import json_server

pytestmark = pytest.mark.integration

BUCKET = 40_000
"""bytes: a model's weights are many times as many"""


def open_file(path: str, num_bytes: int) -> Tensor:
    return torch.from_file(path, shared=True, size=num_bytes, dtype=torch.uint8)


class BetweenFolders(CudaIpc):
    """What it does on GPUs, with a folder for each."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._gpu, self._numbers = folder / f"gpu-{rank}", count()
        self._slots: dict[int, Tensor] = {}
        self._paths: dict[int, str] = {}

    def gpu(self, weights: TrainedWeights) -> str:
        return self._gpu.name

    def memory(self, weights: TrainedWeights) -> Memory:
        def in_turn(slot: int, num_bytes: int) -> Tensor:
            if slot not in self._slots or self._slots[slot].nbytes < num_bytes:
                self._slots[slot] = self._allocated(num_bytes)
            return self._slots[slot]

        return in_turn

    def allocate(self, weights: TrainedWeights) -> Callable[[int], Tensor]:
        return self._allocated

    def share(self, flat: Tensor) -> Opening:
        return open_file, (self._paths[flat.data_ptr()], flat.nbytes)

    def wait_for(self, flat: Tensor) -> None:
        pass

    def collect(self) -> None:
        pass

    def _allocated(self, num_bytes: int) -> Tensor:
        self._gpu.mkdir(exist_ok=True)
        path = self._gpu / str(next(self._numbers))
        path.write_bytes(bytes(num_bytes))
        memory = open_file(str(path), num_bytes)
        self._paths[memory.data_ptr()] = str(path)
        return memory


@dataclass
class Server:
    """Its ranks copy from the GPU on which they are, which another process has written."""

    gpus: Sequence[str]
    late_rank: int | None = None
    """copies after the server has answered"""
    taken: dict[tuple[int, str], Tensor] = field(default_factory=dict[tuple[int, str], Tensor])
    num_bytes: int = 0
    """of all that it was told"""
    version: str = ""
    copying: list[threading.Thread] = field(default_factory=list[threading.Thread])

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path == "/update_weights_from_tensor":
            told: list[str] = body["serialized_named_tensors"]
            assert len(told) == len(self.gpus)
            for rank, text in enumerate(told):
                self.num_bytes += len(text)
                self._take(rank, pickle.loads(base64.b64decode(text)))
        self.version = body.get("new_version", self.version)
        if path == "/flush_cache":
            return 200, b"Cache flushed."
        said: dict[str, Any] = {"success": True, "weight_version": self.version}
        if path == REACH:
            said["gpus"] = self.gpus
        if path == "/weights_checker":
            said["per_engine_checksum"] = self._checksum()
        return 200, said

    def _take(self, rank: int, record: dict[str, Any]) -> None:
        if rank != self.late_rank:
            self._copy(rank, record)
            return
        self.copying.append(threading.Thread(target=self._copy, args=(rank, record, 0.2)))
        self.copying[-1].start()

    def _copy(self, rank: int, record: dict[str, Any], after_s: float = 0.0) -> None:
        time.sleep(after_s)
        for place in record["metadata"]:
            part = record["flattened_tensor"][place.start_idx : place.end_idx].clone()
            self.taken[rank, place.name] = part.view(place.dtype).view(place.shape)

    def _checksum(self) -> str:
        for copy in self.copying:
            copy.join()
        content = [(key, self.taken[key].tolist()) for key in sorted(self.taken)]
        return hashlib.sha256(repr(content).encode()).hexdigest()


@contextmanager
def running(servers: Sequence[Server]) -> Generator[list[Target]]:
    with ExitStack() as stack:
        ports = [stack.enter_context(json_server(server.answer)) for server in servers]
        yield [
            Target(f"http://127.0.0.1:{port}", len(server.gpus), "0")
            for port, server in zip(ports, servers, strict=True)
        ]


def published(trainer: Any, folder: Path, targets: Sequence[Target]) -> dict[str, Any]:
    """The weights, and how many bytes ranks told each other over the network of their host, or
    moved to its memory."""
    from torch.distributed import distributed_c10d as c10d

    told, gather, to_cpu = [0], c10d.all_gather_object, Tensor.cpu
    classes: Any = Tensor

    def counted(gathered: list[Any], own: Any, group: Any) -> None:
        told[0] += len(pickle.dumps(own))
        gather(gathered, own, group)

    def moved(tensor: Tensor, *arguments: Any, **options: Any) -> Tensor:
        told[0] += tensor.nbytes
        return to_cpu(tensor, *arguments, **options)

    weights = replace(trainer.trained_weights(), bucket_bytes=BUCKET)
    transport = BetweenFolders(folder, trainer.layout.rank)
    c10d.all_gather_object, classes.cpu = counted, moved
    try:
        report = transport.push(weights, targets, 7)
    finally:
        c10d.all_gather_object, classes.cpu = gather, to_cpu
    return {"weights": trainer.gathered_weights(), "told": told[0], "report": report}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    make_model("qwen3", folder)
    return folder


LAYOUTS: dict[str, tuple[Parallel, list[list[str]]]] = {
    "alone": (Parallel(), [["gpu-0"]]),
    "tp2 to a server of two": (Parallel(tp=2), [["gpu-0", "gpu-1"]]),
    "tp2 to two servers": (Parallel(tp=2), [["gpu-1"], ["gpu-0"]]),
    "pp2 to a server of two": (Parallel(pp=2), [["gpu-1", "gpu-0"]]),
    "dp2 to one of its GPUs": (Parallel(dp=2), [["gpu-1"]]),
    "four to two servers of two": (TP2_PP2, [["gpu-2", "gpu-3"], ["gpu-0", "gpu-1"]]),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_rank_of_a_server_has_the_weights_and_the_host_has_moved_none(
    name: str, ranks: Ranks, model: Path, tmp_path: Path
) -> None:
    parallel, gpus = LAYOUTS[name]
    servers = [Server(each) for each in gpus]
    with running(servers) as targets:
        found = ranks.run(published, TrainerArgs(model, parallel), tmp_path, targets)
    sent: dict[str, Tensor] = found["weights"]
    num_bytes = sum(tensor.nbytes for tensor in sent.values())
    for server in servers:
        assert server.version == "7"
        for rank in range(len(server.gpus)):
            assert {n for r, n in server.taken if r == rank} == set(sent)
            for key, tensor in sent.items():
                assert torch.equal(server.taken[rank, key], tensor), (rank, key)
    report = found["report"]
    assert (report.bytes, report.servers, report.transport) == (num_bytes, len(gpus), "cuda ipc")
    num_buckets = num_bytes / BUCKET
    assert num_buckets > 4
    # Names and places of tensors travel, a few kilobytes for each bucket, and no weights.
    assert found["told"] < 4_000 * (num_buckets + 4)
    assert all(s.num_bytes < 8_000 * len(s.gpus) * (num_buckets + 4) for s in servers)


@pytest.mark.parametrize("late_rank", [None, 1])
def test_a_rank_that_copies_after_its_server_answered_is_found_out(
    late_rank: int | None, ranks: Ranks, model: Path, tmp_path: Path
) -> None:
    server = Server(["gpu-0", "gpu-1"], late_rank)
    with running([server]) as targets:
        run = (checked, TrainerArgs(model, Parallel(tp=2)), tmp_path, targets)
        if late_rank is None:
            ranks.run(*run)
        else:
            with pytest.raises(EngineError, match=r"cuda ipc: http.* held other weights"):
                ranks.run(*run)


def checked(trainer: Any, folder: Path, targets: Sequence[Target]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(weight_stream.CHECK_WEIGHTS, "1")
        published(trainer, folder, targets)


def test_a_server_on_another_gpu_is_refused_on_every_rank(
    ranks: Ranks, model: Path, tmp_path: Path
) -> None:
    with (
        running([Server(["gpu-0", "gpu-5"])]) as targets,
        pytest.raises(EngineError, match="each of whose ranks shares its GPU with one of the"),
    ):
        ranks.run(published, TrainerArgs(model, Parallel(tp=2)), tmp_path, targets)


def test_a_server_that_fails_ends_the_push_on_every_rank_and_is_told_that_it_is_broken(
    ranks: Ranks, model: Path, tmp_path: Path
) -> None:
    class Failing(Server):
        def answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
            if path == "/update_weights_from_tensor" and self.taken:
                return 500, {"success": False, "message": "no memory"}
            return super().answer(path, body)

    failing = Failing(["gpu-0", "gpu-1"])
    with running([failing]) as targets, pytest.raises(EngineError, match=r"no memory|500"):
        ranks.run(published, TrainerArgs(model, TP2_PP2), tmp_path, targets)
    assert failing.version == "broken"
