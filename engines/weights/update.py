"""The order in which servers take new weights; every transport does its part inside it.

pause -> begin -> (transport) -> end -> flush -> name the version -> continue -> verify. SGLang
refuses a flush or an update while requests run, sometimes with a status of 200, and would go on
with a stale cache: so every reply is checked, and a server is never left paused. What a transport
brings is called "broken" until all of it is there: a trainer that dies half way cannot leave a
server that passes for one version or the other.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Self

from engines.sglang.http import call, order, read_text
from engines.weight_versions import BROKEN_WEIGHTS
from engines.weights.transport import CONTROL_S
from infra.errors import EngineError

FLUSH_S = 10.0
FLUSHED = "Cache flushed"
"""what SGLang's answer begins with, which is text"""
_log = logging.getLogger(__name__)


class Servers:
    """Servers that one rank talks to, all at once; ended by `with`."""

    def __init__(self, urls: Sequence[str]) -> None:
        self.urls = tuple(urls)
        self._pool = ThreadPoolExecutor(len(urls), thread_name_prefix="publish")

    def start(self, work: Callable[[str], Any]) -> list[Future[Any]]:
        """`work(url)` for every server, in the background."""
        return [self._pool.submit(work, url) for url in self.urls]

    def each(self, work: Callable[[str], Any]) -> None:
        """`work(url)` for every server; waits for all, then raises the first error."""
        finish(self.start(work))

    def order(self, path: str, body: dict[str, Any]) -> None:
        self.each(lambda url: order(url, path, body, timeout=CONTROL_S))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()


def finish(work: Sequence[Future[Any]]) -> None:
    """Wait for all, then raise the first error."""
    wait(work)
    for each in work:
        each.result()


class Update:
    """One update of servers: `begin`, whatever brings the weights, then `end` or `give_up`.

    Running requests are put back and resume with the new weights; their tokens say which weights
    made them. After `give_up` the servers take requests again but call their weights "broken", so
    that nobody mistakes what they generate for either version.
    """

    def __init__(self, servers: Servers, version: int | str, *, in_parts: bool = True) -> None:
        """`in_parts`: the weights come in several requests, which SGLang wants to be told."""
        self._servers, self._version, self._in_parts = servers, version, in_parts
        self._began = time.perf_counter()
        self.pause_seconds = 0.0
        """from the first pause to the last continuation"""

    def begin(self) -> None:
        self._began = time.perf_counter()
        self._servers.order("/pause_generation", {"mode": "retract"})
        if self._in_parts:
            self._servers.order("/begin_weight_update", {})

    def end(self, check: Callable[[], None] | None = None) -> None:
        """The servers serve the new version; raises EngineError if one does not.

        `check` is called when all have loaded it and none serves it, and raises if it is not right.
        """
        if self._in_parts:
            self._servers.order("/end_weight_update", {})
        if check is not None:
            check()
        self._servers.each(flush)
        named = {"new_version": str(self._version), "abort_all_requests": False}
        self._servers.order("/update_weight_version", named)
        self._servers.order("/continue_generation", {})
        self.pause_seconds = time.perf_counter() - self._began
        self._servers.each(self._verify)

    def give_up(self) -> None:
        """Best effort on each server separately: some may have died."""
        end = [("/end_weight_update", {})] if self._in_parts else []
        broken = {"new_version": BROKEN_WEIGHTS, "abort_all_requests": True}
        steps = [*end, ("/update_weight_version", broken), ("/continue_generation", {})]

        def free(url: str) -> None:
            for path, body in steps:
                try:
                    order(url, path, body, timeout=CONTROL_S)
                except EngineError as error:
                    _log.warning("after a failed weight update: %s", error)

        self._servers.each(free)

    def _verify(self, url: str) -> None:
        found = str(call(url, "/model_info", timeout=CONTROL_S)["weight_version"])
        if found != str(self._version):
            raise EngineError(f"{url} has weight version {found} after taking {self._version}")


def flush(url: str) -> None:
    """Empty a paused server's cache; raises EngineError if it refuses for FLUSH_S seconds.

    It refuses for a moment after an answer, while the request still counts as running. Its own
    `timeout` parameter is no help: it waits until nothing is queued, and a pause fills the queue.
    """
    deadline = time.monotonic() + FLUSH_S
    while True:
        try:
            answer = read_text(url, "/flush_cache", {}, timeout=CONTROL_S)
            if not answer.startswith(FLUSHED):
                raise EngineError(f"POST {url}/flush_cache was not confirmed: {answer[:300]!r}")
            return
        except EngineError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.01)
