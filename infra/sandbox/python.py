"""Runs untrusted Python code in a process that the kernel confines.

Three mechanisms, each used where the kernel offers it (`infra/sandbox/confine`):

    namespaces   no network device, no other process in sight, a private read-only root
    Landlock     only Python's own library can be read, only a private folder written
    seccomp      no sockets, no new processes, no signals, no tracing, no mounts

The sandbox *holds* with seccomp and one of the two others; with all three it is *full*. A caller
demands `confined` (it holds), `full`, or says `unsafe`. Always: limits on CPU, memory, disk and
open files, a bound on wall-clock time and output, no inherited environment or descriptors, and an
end for the whole group. What Landlock alone leaves open: a program can learn that a file exists.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import selectors
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from infra.errors import InputError, TributaryError
from infra.home import runtime_dir
from infra.sandbox.confine.launcher import READY
from infra.sandbox.sandbox import Limits, SandboxResult
from infra.sandbox.trees import remove, used

Mechanism = Literal["namespaces", "landlock", "seccomp"]
MECHANISMS: tuple[Mechanism, ...] = ("namespaces", "landlock", "seccomp")
_Ending = Literal["closed", "timeout", "quota"]
Demand = Literal["confined", "full", "unsafe"]
DEMANDS: tuple[Demand, ...] = ("confined", "full", "unsafe")
QUOTA_POLL_SECONDS = 0.02
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
"""exit codes of the launcher: killed itself, or passing on that its child was"""
LAUNCHER = Path(__file__).parent / "confine" / "launcher.py"


@dataclass(frozen=True, slots=True)
class Level:
    """Which mechanisms this machine offers."""

    mechanisms: tuple[Mechanism, ...]

    @property
    def holds(self) -> bool:
        return "seccomp" in self.mechanisms and len(self.mechanisms) > 1

    @property
    def name(self) -> Demand:
        """The most that a caller can demand here."""
        if not self.holds:
            return "unsafe"
        return "full" if len(self.mechanisms) == len(MECHANISMS) else "confined"

    def meets(self, demand: Demand) -> bool:
        return demand == "unsafe" or (self.holds and demand in ("confined", self.name))

    def __str__(self) -> str:
        return " + ".join(self.mechanisms) or "none"


@functools.cache
def level() -> Level:
    """Return what holds here, by trying each mechanism once (about 0.1 s, then remembered)."""
    return Level(tuple(mechanism for mechanism in MECHANISMS if _works(mechanism)))


def require(confinement: Level, demand: Demand = "confined") -> None:
    """Raises `InputError` unless the machine offers the required mechanisms."""
    if not confinement.meets(demand):
        other = (
            "set `sandbox: confined` if two mechanisms are enough, or " if demand == "full" else ""
        )
        raise InputError(
            f"refused to run untrusted code: `sandbox: {demand}` is required, but this machine "
            f"can confine a process by {confinement} only. Allow user namespaces, Landlock and "
            f"seccomp, {other or 'or '}set `sandbox: unsafe` if the code may do everything"
            " that you may do."
        )


def run_python(
    code: str,
    limits: Limits | None = None,
    *,
    demand: Demand = "confined",
    confinement: Level | None = None,
) -> SandboxResult:
    """Runs `code` as a program; blocks until it ends or is ended. One that something else than its
    limits kills, such as the kernel when memory is short, is run once more.

    `confinement` defaults to all that this machine offers. Raises `InputError` where it is not
    what is demanded, and `TributaryError` where it could not be set up.
    """
    confinement = confinement or level()
    require(confinement, demand)
    limits = limits or Limits()
    result = _run(code, limits, confinement.mechanisms)
    # Of the limits only that on CPU kills.
    if result.exit_code in _KILLED and result.cpu_seconds < 0.9 * limits.cpu_seconds:
        return _run(code, limits, confinement.mechanisms)
    return result


def _works(mechanism: Mechanism) -> bool:
    try:
        return _run("", Limits(seconds=30.0), (mechanism,)).status == "ok"
    except TributaryError:
        return False


def _run(code: str, limits: Limits, mechanisms: Sequence[Mechanism]) -> SandboxResult:
    with scratch_folder() as work:
        order = {
            "code": code,
            "mechanisms": list(mechanisms),
            "readable": readable_paths(),
            "work": work,
            **asdict(limits),
        }
        started = time.monotonic()
        # the real interpreter, not a virtual environment's link: it sees the bare library only
        process = subprocess.Popen(
            [os.path.realpath(sys.executable), "-I", "-S", str(LAUNCHER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"LANG": "C.UTF-8", "HOME": "/sandbox"},
            start_new_session=True,
        )
        # a mount of the program's own is not seen here, and keeps the quota by itself
        watched = None if "namespaces" in mechanisms else work
        cpu_seconds = 0.0
        try:
            streams, ending = _exchange(process, json.dumps(order).encode(), limits, watched)
        finally:
            cpu_seconds = _end(process)
        seconds = time.monotonic() - started
        result = _result(streams, process.returncode, ending, limits, seconds)
        return replace(result, cpu_seconds=cpu_seconds)


def _exchange(
    process: subprocess.Popen[bytes], order: bytes, limits: Limits, watched: str | None
) -> tuple[tuple[bytes, bytes], _Ending]:
    """Gives the order and reads both outputs until they end or a bound is reached."""
    assert process.stdin
    assert process.stdout
    assert process.stderr
    deadline = time.monotonic() + limits.seconds
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(order)
        process.stdin.close()
    kept: dict[Any, bytearray] = {process.stdout: bytearray(), process.stderr: bytearray()}
    ending: _Ending = "closed"
    with selectors.DefaultSelector() as selector:
        for stream in kept:
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map() and ending == "closed":
            left = deadline - time.monotonic()
            pause = min(left, QUOTA_POLL_SECONDS) if watched else left
            for key, _ in selector.select(max(0.0, pause)):
                chunk = os.read(key.fd, 65536)
                if not chunk:
                    selector.unregister(key.fileobj)
                buffer = kept[key.fileobj]
                buffer += chunk[: limits.output + len(READY) + 1 - len(buffer)]
            if watched and used(watched) > limits.disk:
                ending = "quota"
            elif left <= 0 and selector.get_map():
                ending = "timeout"
    return (bytes(kept[process.stdout]), bytes(kept[process.stderr])), ending


def _end(process: subprocess.Popen[bytes]) -> float:
    """Ends the whole group, also what the code left behind, and collects it; -> CPU seconds."""
    used_seconds = _collect(process, time.monotonic() + 0.05)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    if used_seconds is None:
        used_seconds = _collect(process, math.inf) or 0.0
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):
                stream.close()
    return used_seconds


def _collect(process: subprocess.Popen[bytes], deadline: float) -> float | None:
    """CPU seconds of a process that has ended and of those that it waited for; None at the
    deadline. `Popen.wait` would not tell them."""
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return usage.ru_utime + usage.ru_stime
        if time.monotonic() > deadline:
            return None
        time.sleep(0.002)


def _result(
    streams: tuple[bytes, bytes], exit_code: int, ending: _Ending, limits: Limits, seconds: float
) -> SandboxResult:
    stdout, stderr = streams
    if not stdout.startswith(READY):
        if ending == "timeout":
            return SandboxResult("timeout", "", "", None, False, seconds)
        if exit_code in _KILLED:
            return SandboxResult("killed", "", "", exit_code, False, seconds)
        raise TributaryError(
            f"the sandbox could not be set up (exit code {exit_code}): "
            f"{stderr.decode(errors='replace').strip().splitlines()[-1:]}"
        )
    stdout = stdout[len(READY) :]
    truncated = max(len(stdout), len(stderr)) > limits.output
    out, err = (s[: limits.output].decode(errors="replace") for s in (stdout, stderr))
    if ending != "closed":
        status = "timeout" if ending == "timeout" else "killed"
        return SandboxResult(status, out, err, None, truncated, seconds)
    status = "ok" if exit_code == 0 else "killed" if exit_code < 0 or exit_code > 128 else "error"
    return SandboxResult(status, out, err, exit_code, truncated, seconds)


@functools.cache
def readable_paths() -> list[str]:
    """Python's library, the system's shared libraries, and harmless devices."""
    # of the installed Python: a virtual environment's own folder holds nothing of it
    base = {"base": sys.base_prefix, "platbase": sys.base_exec_prefix}
    stdlib = [sysconfig.get_path(name, vars=base) for name in ("stdlib", "platstdlib")]
    system = ["/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache"]
    devices = ["/dev/null", "/dev/urandom"]
    paths = [*system, *stdlib, *_interpreters_library(), *devices]
    return list(dict.fromkeys(path for path in paths if os.path.lexists(path)))


def _interpreters_library() -> list[str]:
    """libpython, where the interpreter is linked to it: else it would run with the system's, of
    another version, to which compiled modules such as `_ssl` do not fit."""
    if not sysconfig.get_config_var("Py_ENABLE_SHARED"):
        return []
    folder, name = (sysconfig.get_config_var(key) for key in ("LIBDIR", "INSTSONAME"))
    return [f"{folder}/{name}"]


@contextmanager
def scratch_folder() -> Generator[str]:
    """A new empty folder, removed at the end; nobody writes to it any more by then."""
    folder = make_scratch_folder()
    try:
        yield folder
    finally:
        remove(folder)


def make_scratch_folder() -> str:
    """Return a new empty folder, which its process removes, or others once that is gone."""
    base = runtime_dir()  # the name tells `doctor --clean` whose it was
    prefix = f"{base.name}-{os.getpid()}-sandbox-"
    return tempfile.mkdtemp(prefix=prefix, dir=base.parent)
