"""The order in which a server takes new weights; every transport does its part inside it.

pause -> begin -> (transport) -> end -> flush -> continue -> verify. SGLang refuses a flush or an
update while requests run, sometimes with a status of 200, and would go on with a stale cache: so
every reply is checked, and a server is never left paused.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from engines.sglang.http import call, order, read_text
from infra.errors import EngineError

CONTROL_S = 30.0
TRANSFER_S = 600.0
FLUSH_S = 10.0
FLUSHED = "Cache flushed"
"""what SGLang's answer begins with, which is text"""
BROKEN = "broken"
"""the version of a server whose update was interrupted: clients accept no token from it"""
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class UpdatingServers:
    """The servers of one publish; a call goes to all at once."""

    urls: Sequence[str]
    pool: ThreadPoolExecutor

    def each(self, work: Callable[[str], Any]) -> list[Any]:
        """`work(url)` for all servers side by side; waits for all, then raises the first error."""
        futures = [self.pool.submit(work, url) for url in self.urls]
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            raise errors[0]
        return [future.result() for future in futures]

    def order(self, path: str, body: dict[str, Any], timeout: float = CONTROL_S) -> None:
        self.each(lambda url: order(url, path, body, timeout=timeout))


@contextmanager
def updating(endpoints: Sequence[str], version: int) -> Generator[UpdatingServers]:
    """Servers that wait inside a weight update; on leaving they serve as `version`.

    Running requests are put back and resume with the new weights; their tokens say which weights
    made them. If anything fails, the servers take requests again but call their weights "broken",
    so that nobody mistakes what they generate for either version; then the error is raised.
    """
    if not endpoints:
        raise EngineError("no server to publish to")
    with ThreadPoolExecutor(len(endpoints), thread_name_prefix="publish") as pool:
        servers = UpdatingServers(endpoints, pool)
        try:
            servers.order("/pause_generation", {"mode": "retract"})
            servers.order("/begin_weight_update", {})
            yield servers
            servers.order("/end_weight_update", {})
            servers.each(flush)
        except BaseException:
            _give_up(servers)
            raise
        servers.order("/continue_generation", {})
        _verify(servers, version)


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


def _give_up(servers: UpdatingServers) -> None:
    """Best effort on each server separately: some may have died."""

    def free(url: str) -> None:
        for path, body in (
            ("/end_weight_update", {}),
            ("/update_weight_version", {"new_version": BROKEN, "abort_all_requests": True}),
            ("/continue_generation", {}),
        ):
            try:
                order(url, path, body, timeout=CONTROL_S)
            except EngineError as error:
                _log.warning("after a failed weight update: %s", error)

    servers.each(free)


def _verify(servers: UpdatingServers, version: int) -> None:
    def check(url: str) -> None:
        found = str(call(url, "/model_info", timeout=CONTROL_S)["weight_version"])
        if found != str(version):
            raise EngineError(f"{url} has weight version {found} after publishing {version}")

    servers.each(check)
