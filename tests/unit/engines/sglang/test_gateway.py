"""One address for several models, in front of servers that speak OpenAI's API."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import httpx
import pytest
from aiohttp import web

from engines.sglang.serving.models_gateway import Gateway
from infra.access import KEY_VARIABLE, LOOPBACK, required_key
from infra.errors import EngineError
from infra.processes.network import free_ports

pytestmark = pytest.mark.unit

KEY, OWN = "sk-planted", "the-key-of-this-home"
KEYED = {"Authorization": f"Bearer {KEY}"}
LEFT = threading.Event()
"""set when a request for a slow answer is given up"""


class Upstream(Gateway):
    """A router's place: says its name, or streams it letter by letter, one each 20 ms."""

    def __init__(self, port: int, name: str) -> None:
        self.name = name
        super().__init__(LOOPBACK, port, OWN, {name: ""})

    async def _answer(self, request: web.Request, router: str, body: bytes) -> web.StreamResponse:
        del router
        if b'"slow"' in body:
            try:
                while request.transport is not None and not request.transport.is_closing():
                    await asyncio.sleep(0.02)
            finally:
                LEFT.set()
        if b'"stream"' not in body:
            return web.json_response({"model": self.name, "path": request.path})
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        for letter in self.name:
            await answer.write(f"data: {letter}\n\n".encode())
            await asyncio.sleep(0.02)
            if b'"torn"' in body and request.transport is not None:
                request.transport.abort()
        await answer.write_eof()
        return answer


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The gateway's clients send KEY; it sends the routers the key of this home."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRIBUTARY_HOME", str(tmp_path_factory.mktemp("home")))
        patch.setenv(KEY_VARIABLE, OWN)
        required_key()
        yield from _served()


def _served() -> Iterator[str]:
    one, two, nobody, own = free_ports(4)
    routers = {
        "first": f"http://{LOOPBACK}:{one}",
        "second": f"http://{LOOPBACK}:{two}",
        "dead": f"http://{LOOPBACK}:{nobody}",
    }
    with (
        closing(Upstream(one, "first")),
        closing(Upstream(two, "second")),
        closing(Gateway(LOOPBACK, own, KEY, routers)),
    ):
        yield f"http://{LOOPBACK}:{own}"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("model", ["first", "second"])
def test_a_request_goes_to_the_model_that_it_names(url: str, path: str, model: str) -> None:
    answer = httpx.post(url + path, json={"model": model}, headers=KEYED)
    assert answer.json() == {"model": model, "path": path}


def test_models_are_listed(url: str) -> None:
    listed = httpx.get(f"{url}/v1/models", headers=KEYED).json()["data"]
    assert [model["id"] for model in listed] == ["first", "second", "dead"]


def test_an_answer_comes_in_pieces(url: str) -> None:
    body = {"model": "second", "stream": True}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, headers=KEYED) as answer:
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        pieces = list(answer.iter_raw())
    assert len(pieces) > 1
    assert b"".join(pieces) == b"".join(f"data: {letter}\n\n".encode() for letter in "second")


def test_an_answer_that_breaks_off_is_cut_off_and_has_no_second_answer_in_it(url: str) -> None:
    body = {"model": "second", "stream": True, "user": "torn"}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, headers=KEYED) as answer:
        assert answer.status_code == 200
        with pytest.raises(httpx.RemoteProtocolError, match="without sending complete message"):
            list(answer.iter_raw())


def test_an_answer_that_nobody_waits_for_is_given_up(url: str) -> None:
    body = {"model": "first", "user": "slow"}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{url}/v1/chat/completions", json=body, headers=KEYED, timeout=0.3)
    assert LEFT.wait(5)


@pytest.mark.parametrize(
    ("body", "headers", "status", "told"),
    [
        (b'{"model": "third"}', KEYED, 404, "there are first, second, dead"),
        (b'{"messages": []}', KEYED, 400, "with `model`"),
        (b"[]", KEYED, 400, "with `model`"),
        (b'{"model": ["first"]}', KEYED, 404, "no model"),
        (b'{"model": "first"}', {}, 401, "give the key"),
        (b'{"model": "first"}', {"Authorization": "Bearer sk-wrong"}, 401, "give the key"),
        (b'{"model": "first"}', {"Authorization": b"Bearer \xff"}, 401, "give the key"),
        (b'{"model": "dead"}', KEYED, 502, "router does not answer"),
    ],
)
def test_what_cannot_be_answered_is_said_in_openai_s_form(
    url: str, body: bytes, headers: dict[str, Any], status: int, told: str
) -> None:
    answer = httpx.post(f"{url}/v1/chat/completions", content=body, headers=headers)
    assert answer.status_code == status
    assert told in answer.json()["error"]["message"]


def test_a_port_that_is_taken_is_named(url: str) -> None:
    port = int(url.rpartition(":")[2])
    with pytest.raises(EngineError, match=f"nothing can listen on {LOOPBACK}:{port}"):
        Gateway(LOOPBACK, port, KEY, {})
