"""Control calls: what is no answer of an engine is an error, whatever its status says."""

from __future__ import annotations

import socket
from collections.abc import Generator
from contextlib import contextmanager

import pytest

from engines.sglang.http import NoAnswerInTime, NoConnection, Refused, call, order
from engines.weights import update
from infra.errors import EngineError
from tests.parts.json_server import json_server

pytestmark = pytest.mark.unit


@contextmanager
def _answering(status: int, text: str) -> Generator[str]:
    with json_server(lambda *_: (status, text.encode())) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.mark.parametrize(
    ("status", "text", "words"),
    [
        (500, "internal server error", r"refused \(500\)"),
        (200, "<html>busy</html>", "with a JSON object"),
        (200, "", "with a JSON object"),
        (200, "[]", "with a JSON object"),
        (200, '{"success": false, "message": "an update is open"}', "an update is open"),
        (200, "{}", "was not confirmed"),
    ],
)
def test_an_order_that_is_not_confirmed_is_an_error(status: int, text: str, words: str) -> None:
    with _answering(status, text) as url, pytest.raises(EngineError, match=words):
        order(url, "/begin_weight_update", {}, timeout=5)


def test_a_process_that_is_gone_is_told_from_one_that_is_busy() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(NoConnection, match="no connection: ConnectionRefusedError"):
            call(url, "/model_info", timeout=5)
        listener.listen()
        with pytest.raises(NoAnswerInTime, match="no answer in 1 s; the process is busy"):
            call(url, "/model_info", timeout=1)
    with _answering(400, "bad") as url, pytest.raises(Refused, match="400"):
        call(url, "/begin_weight_update", {}, timeout=5)


@pytest.mark.parametrize("text", ['{"success": true}', '{"status": "ok"}'])
def test_an_order_that_is_confirmed_passes(text: str) -> None:
    with _answering(200, text) as url:
        order(url, "/continue_generation", {}, timeout=5)


def test_a_missing_field_is_an_engine_error() -> None:
    with _answering(200, "{}") as url:
        reply = call(url, "/model_info", {}, timeout=5)
    with pytest.raises(EngineError, match="answered without 'weight_version'"):
        reply["weight_version"]


def test_a_cache_counts_as_flushed_only_if_the_server_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(update, "FLUSH_S", 0.0)
    nonsense = _answering(200, "<html>busy</html>")
    with nonsense as url, pytest.raises(EngineError, match="was not confirmed"):
        update.flush(url)
    with _answering(200, "Cache flushed.\nPlease check backend logs.\n") as url:
        update.flush(url)
