"""A process that gives servers of others back when the one that uses them dies.

It is told which servers by a pipe, one JSON object a line. When the pipe ends without a farewell,
its user was killed: then it restores each server and ends the right to it. It is no child of its
user, so that killing the user with all its children spares it.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from engines.sglang.external.server_lock import OwnWeights, ServerLock, restore
from infra.access import forget_key, key_of, note_key
from infra.errors import EngineError, LeaseLost
from infra.home import home
from infra.secret_references import with_secrets_of_the_store

_START_S = 60.0
_log = logging.getLogger(__name__)


class Guard:
    """The user's side; the process starts with the first server."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def watch(self, own: OwnWeights, lock: ServerLock) -> None:
        """Give this server its weights back if this process dies from now on."""
        if self._process is None:
            self._process = _start()
        self._tell({"own": asdict(own), "ttl_s": lock.ttl_s, "holder": lock.holder})

    def leave(self, url: str) -> None:
        """The server needs nothing any more."""
        self._tell({"leave": url})

    def end(self) -> None:
        self._tell({"end": True})
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()
            self._process = None

    def _tell(self, message: dict[str, Any]) -> None:
        if self._process is None or self._process.stdin is None:
            return
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            _log.warning("nobody will give servers back if this process dies: %r", error)
            self._process = None


def _start() -> subprocess.Popen[bytes]:
    logs = home() / "logs"
    logs.mkdir(exist_ok=True)
    with (logs / "external-servers.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=with_secrets_of_the_store(os.environ),
            start_new_session=True,
        )
    process.wait(_START_S)  # what we started ends at once; its own child reads the pipe
    return process


def main() -> None:
    """Read messages to the end of standard input, then act if nobody said farewell."""
    if os.fork():
        os._exit(0)
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    watched: dict[str, tuple[OwnWeights, ServerLock]] = {}
    for line in sys.stdin.buffer:
        message: dict[str, Any] = json.loads(line)
        if "end" in message:
            break
        if "leave" in message:
            watched.pop(message["leave"], None)
            forget_key(message["leave"])
        else:
            own = OwnWeights(**message["own"])
            watched[own.url] = own, ServerLock(own.url, message["ttl_s"], message["holder"])
            note_key(own.url, key_of(own.url))  # its user's note ends with him
    else:
        for own, lock in watched.values():
            _give_back(own, lock)
    for url in watched:
        forget_key(url)


def _give_back(own: OwnWeights, lock: ServerLock) -> None:
    try:
        lock.renew()
        restore(own)
        _log.info("gave %s its weights in %s back", own.url, own.model_path)
    except LeaseLost:
        _log.info("%s is in use by another run now", own.url)
    except EngineError as error:
        _log.warning("%s", error)
    lock.release()


if __name__ == "__main__":
    main()
