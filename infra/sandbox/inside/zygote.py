"""Forks confined agents for its owner: a process that has Python loaded needs no time to load it.

Started as `python -s -S -P zygote.py OWNER` with a Unix socket as standard input. A request is one
datagram: JSON with `mechanisms`, `readable`, `disk` and `scratch`, and the agent's socket with it.
It ends with its owner, also one that is killed; agents end with it.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import sys
from typing import Any, NoReturn

_ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3))
sys.path.insert(0, _ROOT)
from infra.sandbox.confine import landlock, libc, namespaces  # noqa: E402
from infra.sandbox.inside.agent_messages import encode, write_all  # noqa: E402
from infra.sandbox.inside.commands import Place  # noqa: E402
from infra.sandbox.inside.confined_agent import serve  # noqa: E402
from infra.sandbox.trees import remove  # noqa: E402

sys.path.remove(_ROOT)
MOST_REQUEST = 1 << 16
_MOUNT_POINTS = ("/mnt", "/media", "/sys", "/tmp")
"""folders that a sandbox may cover, in a view of its own, to build its root there"""


def main() -> None:
    gc.collect()
    gc.freeze()
    owner = os.pidfd_open(int(sys.argv[1]))
    requests = socket.socket(fileno=0)
    ended, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    scratch: dict[int, str] = {}
    poll = select.poll()
    for descriptor in (owner, 0, ended):
        poll.register(descriptor, select.POLLIN)
    try:
        while True:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if owner in ready:
                return
            if ended in ready:
                os.read(ended, 4096)
                _collect(scratch)
            if 0 in ready and not _start(requests, scratch, (owner, ended, woken)):
                return
    finally:
        _end_all(scratch)


def _start(requests: socket.socket, scratch: dict[int, str], own: tuple[int, ...]) -> bool:
    """Forks an agent for the next request; False at the end of requests."""
    message, descriptors, _, _ = socket.recv_fds(requests, MOST_REQUEST, 1)
    if not message:
        return False
    order = json.loads(message)
    child = os.fork()
    if child == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for descriptor in own:
            os.close(descriptor)
        requests.close()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        _become_agent(order, descriptors[0])
    for descriptor in descriptors:
        os.close(descriptor)
    if order["scratch"]:
        scratch[child] = order["scratch"]
    return True


def _become_agent(order: dict[str, Any], channel: int) -> NoReturn:
    try:
        serve(channel, channel, _enclose(order))
    except BaseException as error:
        write_all(channel, encode({"error": f"{type(error).__name__}: {error}"}))
    finally:
        os._exit(0)


def _enclose(order: dict[str, Any]) -> Place:
    """Confines this process, or a child of it that goes on in its place, by all that is ordered."""
    mechanisms, readable, work = order["mechanisms"], order["readable"], order["scratch"]
    _die_with(os.getppid())
    has_namespaces = "namespaces" in mechanisms
    if has_namespaces:
        namespaces.leave()
        _die_with(os.getppid())  # new credentials forget it
        _stay_as_parent()
        libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)
        namespaces.replace_root(_mount_point(readable), readable, order["disk"])
        namespaces.become_nobody()
        libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)  # another user forgets it
        work = namespaces.WORK
    libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
    libc.drop_capabilities()
    if "landlock" in mechanisms:
        landlock.restrict(readable, [work])
    os.chdir(work)
    return Place(work, alone=has_namespaces, watch_disk=not has_namespaces)


def _die_with(parent: int) -> None:
    libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _stay_as_parent() -> None:
    """Forks: the child, first of its PID namespace, goes on; this process waits for its end."""
    child = os.fork()
    if child:
        os.closerange(0, 1 << 16)
        os.waitpid(child, 0)
        os._exit(0)


def _mount_point(readable: list[str]) -> str:
    for path in _MOUNT_POINTS:
        if os.path.isdir(path) and not any(
            f"{shown}/".startswith(f"{path}/") for shown in readable
        ):
            return path
    raise OSError(f"none of {', '.join(_MOUNT_POINTS)} is a folder to build a root on")


def _collect(scratch: dict[int, str]) -> None:
    """Buries ended agents, and removes the folders that they had on the host."""
    while True:
        try:
            child, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not child:
            return
        _remove(scratch.pop(child, ""))


def _end_all(scratch: dict[int, str]) -> None:
    for child in list(scratch):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        _remove(scratch[child])


def _remove(folder: str) -> None:
    """What cannot be removed yet is left to the next process of ours."""
    with contextlib.suppress(OSError):
        if folder:
            remove(folder)


if __name__ == "__main__":
    main()
