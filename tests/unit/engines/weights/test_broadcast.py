"""A broadcast whose servers do not join says which, and what to do."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import torch

from engines.weights import broadcast
from engines.weights.broadcast import Broadcast
from engines.weights.buckets import TrainedWeights
from engines.weights.model_folder import WholeTensor
from engines.weights.transport import Target
from infra.errors import EngineError

pytestmark = pytest.mark.unit


@contextmanager
def _server(answer: Mapping[str, Any], after_s: float = 0.0) -> Generator[Target]:
    """One that answers so, and joins no group."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            time.sleep(after_s)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield Target(f"http://127.0.0.1:{server.server_port}", 1, "0")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_servers_that_do_not_join_are_named_with_what_they_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(broadcast, "_JOIN_S", 0.5)
    monkeypatch.setattr(broadcast, "_ANSWER_S", 0.3)
    weights = TrainedWeights([WholeTensor("w", torch.zeros(4))])
    refusal = {"success": False, "message": "no such backend"}
    with _server(refusal) as refuses, _server({"success": True}, 1.2) as late:
        transport = Broadcast()
        with pytest.raises(EngineError) as raised:
            transport.push(weights, [refuses, late], 1)
        transport.close()
    text = str(raised.value)
    assert "did not all join the trainer's process group at tcp://127.0.0.1:" in text
    assert "within 0 s" in text
    assert f"{refuses.url}: POST" in text
    assert "no such backend" in text
    assert f"{late.url}: POST {late.url}/init_weights_update_group: no answer in 0 s" in text
    assert "`disk_delta`" in text
