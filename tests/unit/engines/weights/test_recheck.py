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

from engines.weights import recheck
from engines.weights.buckets import TrainedWeights
from engines.weights.model_folder import WholeTensor
from engines.weights.shared_memory import SharedMemory
from engines.weights.transport import Target
from infra.errors import EngineError
from tests.parts.json_server import json_server

pytestmark = pytest.mark.unit


class _Weights:
    """What a server has taken."""

    def __init__(self, *, answers_first: bool) -> None:
        self._answers_first = answers_first
        self._copying: list[threading.Thread] = []
        self.taken: dict[str, torch.Tensor] = {}

    def take(self, record: dict[str, Any]) -> None:
        if not self._answers_first:
            self._copy(record)
            return
        self._copying.append(threading.Thread(target=self._copy, args=(record, 0.1)))
        self._copying[-1].start()

    def _copy(self, record: dict[str, Any], after_s: float = 0.0) -> None:
        time.sleep(after_s)
        for place in record["metadata"]:
            part = record["flattened_tensor"][place.start_idx : place.end_idx]
            self.taken[place.name] = part.view(place.dtype).clone()

    def checksum(self) -> str:
        for copy in self._copying:
            copy.join()
        content = [(name, self.taken[name].tolist()) for name in sorted(self.taken)]
        return hashlib.sha256(repr(content).encode()).hexdigest()


@contextmanager
def _server(held: _Weights) -> Generator[Target]:
    version = ""

    def answer(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        nonlocal version
        if path == "/update_weights_from_tensor":
            (told,) = body["serialized_named_tensors"]
            held.take(pickle.loads(base64.b64decode(told)))
        if path == "/update_weight_version":
            version = body["new_version"]
        if path == "/flush_cache":
            return 200, b"Cache flushed."
        said: dict[str, Any] = {"success": True, "weight_version": version}
        if path == "/weights_checker":
            said["per_engine_checksum"] = held.checksum()
        return 200, said

    with json_server(answer) as port:
        yield Target(f"http://127.0.0.1:{port}", 1, "0")


@pytest.mark.parametrize("answers_first", [False, True], ids=["waits", "races"])
def test_weights_of_a_server_that_reads_too_late_are_not_what_was_sent(
    answers_first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path))
    monkeypatch.setenv(recheck.VARIABLE, "1")
    whole = [WholeTensor(f"w{i}", torch.full((16,), float(i))) for i in range(6)]
    weights = TrainedWeights(whole, bucket_bytes=64)
    held = _Weights(answers_first=answers_first)
    transport = SharedMemory()
    with _server(held) as target:
        if answers_first:
            with pytest.raises(EngineError, match=f"{target.url} held other weights than version"):
                transport.push(weights, [target], 1)
        else:
            transport.push(weights, [target], 1)
        held.checksum()
    transport.close()
    assert all(torch.equal(held.taken[w.name], w.local) for w in whole), "each with its own memory"
