"""The kind `bubblewrap`: what the program `bwrap` confines, with processes of its own.

Commands may be any programs below the readable trees. They have a network of their own, which
leads nowhere but to the addresses that `reach` names.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from infra.errors import InputError
from infra.sandbox.agent_sandbox import AgentSandbox
from infra.sandbox.confine.namespaces import WORK
from infra.sandbox.connection import Connection
from infra.sandbox.forwarding import Forwarder
from infra.sandbox.limits import Limits
from infra.sandbox.python import readable_paths

PROGRAM = "bwrap"
SANDBOX_CODE = Path(__file__).parent.parent
CODE_INSIDE = "/agent/infra/sandbox"
_PROGRAMS = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/ssl", "/etc/alternatives")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_NOBODY = "65534"
_USERS = f"sandbox:x:{_NOBODY}:{_NOBODY}::{WORK}:/bin/sh\n"
"""the sandbox's /etc/passwd: some programs end where their user has no name"""


@functools.cache
def refusal() -> str:
    """Why this machine cannot run it, or nothing; tried once."""
    if shutil.which(PROGRAM) is None:
        return f"`{PROGRAM}` is not installed; on Debian the package is `bubblewrap`"
    tried = [PROGRAM, "--unshare-all", "--ro-bind", "/", "/", "true"]
    try:
        done = subprocess.run(tried, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"`{PROGRAM}` does not run: {error}"
    return f"`{PROGRAM}` cannot confine here: {done.stderr.strip()}" if done.returncode else ""


def start(
    limits: Limits,
    *,
    readable: Sequence[str] = (),
    reach: Mapping[int, str] | None = None,
) -> AgentSandbox:
    """A sandbox that is ready.

    `readable` are more trees to show, at their own paths; `reach` maps ports of the sandbox's
    loopback to the `host:port` that each leads to. Raises InputError where `bwrap` cannot run.
    """
    if why := refusal():
        raise InputError(f"no sandbox of the kind `bubblewrap`: {why}.")
    if reach and limits.processes == 1:
        raise InputError("`reach` needs `limits.processes` above 1: one process has no sockets.")
    ours, theirs = socket.socketpair()
    with theirs, _users() as users:
        process = subprocess.Popen(
            _command(limits, readable, users.fileno()),
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=subprocess.DEVNULL,
            env={"LANG": "C.UTF-8"},
            start_new_session=True,
            pass_fds=[users.fileno()],
        )
    forwarder = Forwarder()

    def end() -> None:
        forwarder.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    connection = Connection(ours, "a bubblewrap sandbox")
    sandbox = AgentSandbox(connection, limits, end=end)
    try:
        sandbox.wait_ready()
        if reach:
            forwarder.forward(sandbox.listen(list(reach)), list(reach.values()))
    except BaseException:
        sandbox.stop()
        raise
    return sandbox


def _users() -> BinaryIO:
    """A file in memory, at its beginning."""
    users = os.fdopen(os.memfd_create("users"), "w+b")
    users.write(_USERS.encode())
    users.seek(0)
    return users


def _command(limits: Limits, readable: Sequence[str], users: int) -> list[str]:
    """Without `--die-with-parent`, which means the thread that starts it: the agent ends when its
    channel does. `users` is the descriptor of the sandbox's /etc/passwd."""
    has_processes = limits.processes > 1
    interpreter = os.path.realpath(sys.executable)
    shown = [*readable_paths(), interpreter, *readable]
    if has_processes:
        shown = [*_PROGRAMS, *shown]
    mounts: list[str] = []
    for path in dict.fromkeys(shown):
        if path.startswith("/dev/") or not os.path.lexists(path):
            continue
        is_link = os.path.islink(path)
        mounts += ["--symlink", os.readlink(path), path] if is_link else ["--ro-bind", path, path]
    for device in _DEVICES:
        mounts += ["--dev-bind", device, device]
    if has_processes:
        mounts += ["--proc", "/proc", "--symlink", "/proc/self/fd", "/dev/fd"]
    return [
        *(PROGRAM, "--unshare-user", "--unshare-all", "--new-session"),
        *("--as-pid-1", "--cap-drop", "ALL", "--uid", _NOBODY, "--gid", _NOBODY),
        *("--hostname", "sandbox", "--clearenv", "--setenv", "LANG", "C.UTF-8"),
        *("--setenv", "PYTHONHASHSEED", "0", "--setenv", "PYTHONDONTWRITEBYTECODE", "1"),
        *mounts,
        *("--ro-bind-data", str(users), "/etc/passwd"),
        *("--ro-bind", str(SANDBOX_CODE), CODE_INSIDE),
        *("--size", str(limits.disk), "--tmpfs", WORK, "--remount-ro", "/", "--chdir", WORK),
        *(interpreter, "-s", "-S", "-P", f"{CODE_INSIDE}/inside/main.py", WORK, "watch-disk"),
    ]
