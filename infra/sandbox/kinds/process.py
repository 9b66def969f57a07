"""The kind `process`: a Python program in a process that the kernel confines.

What confines it is as in `infra/sandbox/python.py`. A warm process of the owner's forks the
sandboxes (`inside/zygote.py`), so that none waits for Python to start.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from infra.errors import InputError
from infra.sandbox.agent_sandbox import AgentSandbox
from infra.sandbox.connection import Connection
from infra.sandbox.python import (
    Demand,
    Level,
    Mechanism,
    level,
    make_scratch_folder,
    readable_paths,
    require,
)
from infra.sandbox.sandbox import Limits, SandboxLost

ZYGOTE = Path(__file__).parent.parent / "inside" / "zygote.py"
ENVIRONMENT = {"LANG": "C.UTF-8", "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
"""of agents: the order of a set is the same in every run"""


def start(
    limits: Limits, *, demand: Demand = "confined", confinement: Level | None = None
) -> AgentSandbox:
    """Return a sandbox that is ready. Raises InputError where the machine offers less than
    `demand`.
    """
    if limits.processes > 1:
        raise InputError(
            "`limits.processes` is above 1, but a process sandbox runs one Python program at a "
            "time: take the kind `bubblewrap` or `container`."
        )
    confinement = confinement or level()
    require(confinement, demand)
    ours, theirs = socket.socketpair()
    connection = Connection(ours, "a process sandbox")
    try:
        _ZYGOTES.fork(theirs, confinement.mechanisms, limits)
    finally:
        theirs.close()
    sandbox = AgentSandbox(connection, limits)
    try:
        sandbox.wait_ready()
    except BaseException:
        sandbox.stop()
        raise
    return sandbox


class _Zygotes:
    """The one zygote of this process: started when first needed, and again if it is gone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner = 0
        self._requests: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def fork(self, channel: socket.socket, mechanisms: Sequence[Mechanism], limits: Limits) -> None:
        """Has an agent serve `channel`."""
        order = {
            "mechanisms": list(mechanisms),
            "readable": readable_paths(),
            "disk": limits.disk,
            "scratch": "" if "namespaces" in mechanisms else make_scratch_folder(),
        }
        message = json.dumps(order).encode()
        with self._lock:
            for is_last in (False, True):
                requests = self._ready()
                try:
                    socket.send_fds(requests, [message], [channel.fileno()])
                    return
                except OSError as error:
                    self._forget()
                    if is_last:
                        raise SandboxLost(f"sandboxes cannot be started: {error}") from error

    def _ready(self) -> socket.socket:
        if self._owner != os.getpid():  # a fork of a process that had one
            self._requests = self._process = None
        if self._process is not None and self._process.poll() is not None:
            self._forget()
        if self._requests is None:
            self._start()
        assert self._requests is not None
        return self._requests

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [os.path.realpath(sys.executable), "-s", "-S", "-P", str(ZYGOTE), str(os.getpid())],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=ENVIRONMENT,
                start_new_session=True,
            )
        self._owner, self._requests = os.getpid(), ours

    def _forget(self) -> None:
        if self._requests is not None:
            self._requests.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._requests = self._process = None


_ZYGOTES = _Zygotes()
