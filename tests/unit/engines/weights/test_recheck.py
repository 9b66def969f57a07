"""A server that answers before it has read a bucket is found out."""

from __future__ import annotations

import base64
import hashlib
import pickle
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from engines.sglang.external.give_weights import WholeTensor
from engines.sglang.servers import server_hooks
from engines.weights import weight_stream
from engines.weights.buckets import TrainedWeights
from engines.weights.shared_memory import SharedMemory
from engines.weights.transport import Target
from infra.errors import EngineError
from tests.parts.json_server import json_server

pytestmark = pytest.mark.unit


class _Weights:
    """What the ranks of a server have taken."""

    def __init__(self, *late_ranks: int) -> None:
        """`late_ranks`: those that copy after the server has answered."""
        self._late_ranks = late_ranks
        self._copying: list[threading.Thread] = []
        self.taken: dict[str, torch.Tensor] = {}
        """by rank and name"""

    def take(self, records: list[dict[str, Any]]) -> None:
        for rank, record in enumerate(records):
            if rank not in self._late_ranks:
                self._copy(rank, record)
                continue
            self._copying.append(threading.Thread(target=self._copy, args=(rank, record, 0.1)))
            self._copying[-1].start()

    def _copy(self, rank: int, record: dict[str, Any], after_s: float = 0.0) -> None:
        time.sleep(after_s)
        for place in record["metadata"]:
            part = record["flattened_tensor"][place.start_idx : place.end_idx]
            self.taken[f"{rank} {place.name}"] = part.view(place.dtype).clone()

    def checksum(self) -> str:
        for copy in self._copying:
            copy.join()
        content = [(name, self.taken[name].tolist()) for name in sorted(self.taken)]
        return hashlib.sha256(repr(content).encode()).hexdigest()


@contextmanager
def _server(held: _Weights, num_ranks: int) -> Generator[Target]:
    version = ""

    def answer(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        nonlocal version
        if path == "/update_weights_from_tensor":
            told = body["serialized_named_tensors"]
            held.take([pickle.loads(base64.b64decode(each)) for each in told])
        if path == "/update_weight_version":
            version = body["new_version"]
        if path == "/flush_cache":
            return 200, b"Cache flushed."
        said: dict[str, Any] = {"success": True, "weight_version": version}
        if path == "/weights_checker":
            said["per_engine_checksum"] = held.checksum()
        return 200, said

    with json_server(answer) as port:
        yield Target(f"http://127.0.0.1:{port}", num_ranks, "0")


@pytest.mark.parametrize(
    ("num_ranks", "late_ranks"),
    [(1, ()), (2, ()), (1, (0,)), (2, (1,))],
    ids=["waits", "both ranks wait", "races", "second rank races"],
)
def test_weights_of_a_server_that_reads_too_late_are_not_what_was_sent(
    num_ranks: int, late_ranks: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside one that waits, which is not blamed."""
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path))
    monkeypatch.setenv(weight_stream.CHECK_WEIGHTS, "1")
    whole = [WholeTensor(f"w{i}", torch.full((16,), float(i))) for i in range(6)]
    weights = TrainedWeights(whole, bucket_bytes=64)
    held, of_other = _Weights(*late_ranks), _Weights()
    transport = SharedMemory()
    with _server(held, num_ranks) as target, _server(of_other, 2) as other:
        if late_ranks:
            wrong = f"shared memory: {target.url} held other weights than version"
            with pytest.raises(EngineError, match=wrong):
                transport.push(weights, [other, target], 1)
        else:
            transport.push(weights, [other, target], 1)
        held.checksum()
    transport.close()
    for rank in range(num_ranks):
        own = [held.taken[f"{rank} {w.name}"] for w in whole]
        sent = [w.local for w in whole]
        assert all(map(torch.equal, own, sent)), "each with its own memory"


@pytest.mark.parametrize(("device", "waits"), [("cuda", 1), ("cpu", 0)])
def test_a_rank_has_copied_from_a_gpu_before_it_is_done(
    device: str, waits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the server's first rank would answer while copies of the others are only queued."""
    steps: list[str] = []

    class Memory:
        data_ptr = staticmethod(lambda: 1)

    class Flat:
        device: torch.device
        untyped_storage = staticmethod(Memory)

    class Stream:
        synchronize = staticmethod(lambda: steps.append("waited"))

    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(server_hooks, "_mapped", [])
    flat = Flat()
    flat.device = torch.device(device)

    def stock(*_: Any, **__: Any) -> str:
        steps.append("queued")
        return "done"

    bucket = {"flattened_tensor": flat}
    keeping = server_hooks._keeping
    assert keeping(stock, None, flattened_tensor_bucket_dict=bucket) == "done"
    assert steps == ["queued", "waited"][: 1 + waits]
