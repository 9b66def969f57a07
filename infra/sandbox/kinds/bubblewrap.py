"""The kind `bubblewrap`: what the program `bwrap` confines, with processes of its own.

Commands may be any programs below the readable trees. They have a network of their own, which
leads nowhere but to the addresses that `reach` names.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO

from infra.errors import InputError
from infra.home import home, runtime_dir
from infra.sandbox.agent_sandbox import AgentSandbox
from infra.sandbox.confine.namespaces import MAPPED_BY_ROOT, NOBODY, WORK
from infra.sandbox.connection import Connection
from infra.sandbox.forwarding import Forwarder
from infra.sandbox.inside.programs import PYTHON
from infra.sandbox.python import readable_paths
from infra.sandbox.sandbox import Limits, SandboxLost, SandboxRefused
from infra.secret_references import ask_program

PROGRAM = "bwrap"
SANDBOX_CODE = Path(__file__).parent.parent
CODE_INSIDE = "/agent/infra/sandbox"
_PROGRAMS = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/ssl", "/etc/alternatives")
_DEVICES = {
    **{name: name for name in ("/dev/null", "/dev/full", "/dev/random", "/dev/urandom")},
    "/dev/zero": "/dev/full",
}
"""what each name is on this machine. Of /dev/zero one can have memory that no limit counts"""
_READ_ONLY = tuple(
    f"/proc/{name}" for name in ("sys", "irq", "bus", "fs", "scsi", "acpi", "pressure")
)
_HIDDEN = tuple(
    f"/proc/{name}"
    for name in (
        *("sysrq-trigger", "kcore", "keys", "key-users", "timer_list", "kmsg", "kallsyms"),
        *("cmdline", "config.gz", "interrupts", "softirqs", "diskstats", "partitions", "swaps"),
        *("slabinfo", "vmallocinfo", "iomem", "ioports", "locks", "sched_debug", "latency_stats"),
        *("kpagecount", "kpageflags", "kpagecgroup", "pagetypeinfo", "schedstat", "modules"),
    )
)
"""of the machine, not of the sandbox"""
_CHILD = re.compile(rb'"child-pid": (\d+)\b')
_USERS = f"sandbox:x:{NOBODY}:{NOBODY}::{WORK}:/bin/sh\n"
"""the sandbox's /etc/passwd: some programs end where their user has no name"""


@functools.cache
def refusal() -> str:
    """Why this machine cannot run it, or nothing; tried once."""
    if shutil.which(PROGRAM) is None:
        return f"`{PROGRAM}` is not installed; on Debian the package is `bubblewrap`"
    tried = [PROGRAM, "--unshare-all", "--ro-bind", "/", "/", "true"]
    try:
        done = ask_program(tried, 30)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"`{PROGRAM}` does not run: {error}"
    if done.returncode:
        return f"`{PROGRAM}` cannot confine here: {done.stderr.strip()}"
    return _roots_refusal() if os.geteuid() == 0 else ""


def _roots_refusal() -> str:
    """Why root cannot start one in which it is nobody, or nothing. There is no other for root: it
    would write /proc/sys and change devices of this machine."""
    try:
        with _started(Limits(seconds=30.0, processes=2)) as sandbox:
            told = sandbox.exec([PYTHON, "-c", "import json, os; print(os.getuid())"])
        why = "" if told.stdout == f"{NOBODY}\n" else told.stderr.strip()[-300:] or told.status
    except (SandboxLost, SandboxRefused) as error:
        why = str(error)
    return why and (
        f"root cannot become nobody in one ({why}). Run as another user, or let root map users in "
        "a namespace (CAP_SETUID, CAP_SETGID, CAP_SETFCAP) and others read Python's folder"
    )


def start(
    limits: Limits,
    *,
    readable: Sequence[str] = (),
    reach: Mapping[int, str] | None = None,
) -> AgentSandbox:
    """Return a sandbox that is ready.

    `readable` are more trees to show, at their own paths; `reach` maps ports of the sandbox's
    loopback to the `host:port` that each leads to. Raises InputError where `bwrap` cannot run.
    """
    if why := refusal():
        raise InputError(f"no sandbox of the kind `bubblewrap`: {why}.")
    if reach and limits.processes == 1:
        raise InputError("`reach` needs `limits.processes` above 1: one process has no sockets.")
    _check_readable(readable)
    return _started(limits, readable, reach or {})


def _started(
    limits: Limits, readable: Sequence[str] = (), reach: Mapping[int, str] = MappingProxyType({})
) -> AgentSandbox:
    ours, theirs = socket.socketpair()
    with theirs, _users() as users, _Mapping() as mapping:
        process = subprocess.Popen(
            _command(limits, readable, users.fileno(), mapping.options),
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=subprocess.DEVNULL,
            env={"LANG": "C.UTF-8"},
            start_new_session=True,
            pass_fds=[users.fileno(), *mapping.descriptors],
        )
        mapping.write()
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


class _Mapping:
    """Makes root of this machine nobody inside, for good, where root starts the sandbox.

    `bwrap` says which process waits for its users, which only a process outside may give it; the
    agent then becomes nobody. For any other user there is nothing to do.
    """

    def __init__(self) -> None:
        self.descriptors: list[int] = []
        self.options: list[str] = []
        self._ours: list[int] = []
        if os.geteuid() == 0:
            (said, says), (waits, goes) = os.pipe(), os.pipe()
            self.descriptors, self._ours = [says, waits], [said, goes]
            self.options = ["--info-fd", str(says), "--userns-block-fd", str(waits)]
            self.options += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]

    def __enter__(self) -> _Mapping:
        return self

    def write(self) -> None:
        """Where it fails, `bwrap` goes on without users and ends."""
        if not self._ours:
            return
        while self.descriptors:
            os.close(self.descriptors.pop())
        told = b""
        while b"}" not in told and (piece := os.read(self._ours[0], 4096)):
            told += piece
        found = _CHILD.search(told)
        if found is None:
            return
        with contextlib.suppress(OSError):
            for kind in ("uid", "gid"):
                Path(f"/proc/{int(found[1])}/{kind}_map").write_text(MAPPED_BY_ROOT)
            os.write(self._ours[1], b"1")

    def __exit__(self, *_: object) -> None:
        for descriptor in (*self.descriptors, *self._ours):
            os.close(descriptor)


def _check_readable(paths: Sequence[str]) -> None:
    """Root's own folders, which nobody else may read, cannot be shown: inside, root is nobody. The
    stack's own may not: who reads its key or connects to Ray's sockets is out of the sandbox."""
    for own in (home(), runtime_dir().resolve()) if paths else ():
        if shown := [path for path in paths if own.is_relative_to(Path(path).resolve())]:
            raise InputError(
                f"`readable`: {shown[0]} holds this stack's own folder {own}, with its key or its"
                " sockets. Name the folders that the program needs, without that one."
            )
    for path in paths if os.geteuid() == 0 else ():
        needed = stat.S_IROTH | (stat.S_IXOTH if os.path.isdir(path) else 0)
        if os.path.exists(path) and os.stat(path).st_mode & needed != needed:
            raise InputError(
                f"`readable`: {path} can be read by root alone, and root is nobody in a sandbox. "
                f"Allow others to read it (`chmod -R o+rX {path}`), or run as another user."
            )


def _folders_above(paths: Sequence[str]) -> list[str]:
    """Return what leads to them, open to nobody, whatever the folders of these names allow here."""
    found = {str(folder) for path in paths for folder in Path(path).parents if folder.name}
    shown = tuple(f"{path}/" for path in paths)
    made = sorted(folder for folder in found if not f"{folder}/".startswith(shown))
    return [word for folder in made for word in ("--dir", folder)]


def _users() -> BinaryIO:
    """Return a file in memory, at its beginning."""
    users = os.fdopen(os.memfd_create("users"), "w+b")
    users.write(_USERS.encode())
    users.seek(0)
    return users


def _command(
    limits: Limits, readable: Sequence[str], users: int, mapping: Sequence[str]
) -> list[str]:
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
    for name, device in _DEVICES.items():
        mounts += ["--dev-bind", device, name]
    if has_processes:
        mounts += ["--proc", "/proc", "--symlink", "/proc/self/fd", "/dev/fd"]
        for name in filter(os.path.exists, _READ_ONLY):
            mounts += ["--ro-bind", name, name]
        for name in filter(os.path.exists, _HIDDEN):
            mounts += ["--ro-bind", os.devnull, name]
    return [
        *(PROGRAM, "--unshare-user", "--unshare-all", "--new-session"),
        *("--as-pid-1", "--uid", str(NOBODY), "--gid", str(NOBODY), "--cap-drop", "ALL", *mapping),
        *("--hostname", "sandbox", "--clearenv", "--setenv", "LANG", "C.UTF-8"),
        *("--setenv", "PYTHONHASHSEED", "0", "--setenv", "PYTHONDONTWRITEBYTECODE", "1"),
        *_folders_above([*shown, CODE_INSIDE]),
        *mounts,
        *("--perms", "0444", "--ro-bind-data", str(users), "/etc/passwd"),
        *("--ro-bind", str(SANDBOX_CODE), CODE_INSIDE),
        *(
            "--perms",
            "0777",
            "--size",
            str(limits.disk),
            "--tmpfs",
            WORK,
            "--remount-ro",
            "/",
            "--chdir",
            WORK,
        ),
        *(interpreter, "-s", "-S", "-P"),
        *(f"{CODE_INSIDE}/inside/start_agent.py", WORK, "watch-disk"),
    ]
