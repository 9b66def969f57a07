"""`tributary doctor`: each check with the command that repairs it; the hosts of the cluster; what a
crash of the machine left behind in this home, and its removal.

Looked at: the folder of the stack's sockets, temporary folders and shared memory of processes that
are gone, folders of jobs that were killed, drafts of records, of the store's files and of copies,
and a record of a stack of which nothing runs. A thing of a living process is never touched, nor
one of another home but shared memory that a dead process left an hour ago; what may still be of use
is not ours to judge: artifacts, checkpoints, logs and databases stay.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from infra.errors import TributaryError
from infra.home import home, runtime_dir
from infra.processes.children import family, is_alive
from infra.processes.leftovers import is_over, leftovers_of_dead, remove_leftovers
from infra.processes.network import is_free
from infra.stack.installed import Check, engines, kernels, packages, python_version, torch_build
from infra.stack.record import Stack, load_record, save_record, stack_lock
from infra.stack.services import get_json, services
from infra.stack.stack_ports import exposure
from infra.tracking.refusals import num_refused, refused_folder

_GIB = 2**30
FREE_GIB = 5.0
SOCKET_PATH_BYTES = 107
RAY_SOCKET_BYTES = 66
"""how far below its folder Ray's longest socket name reaches"""
DRAFT_SECONDS = 24 * 3600.0
"""a draft of one write is that of a dead process by then"""
_RECORD_DRAFT = re.compile(r"(?:stack|\.doctor)\.(\d+)")
_STORE_DRAFT = re.compile(r"\..+\.[0-9a-f]{12}")
_COPY_DRAFT = re.compile(r"a\d+\.[0-9a-f]+")


@dataclass(frozen=True, slots=True)
class Leftover:
    """Example: Leftover("draft of a record", Path("/tmp/tributary-3f09c2b1"), ...)"""

    what: str
    path: Path
    remove: Callable[[], object]


def clean(*, dry: bool = False) -> list[Leftover]:
    """Find what nobody owns any more and, unless `dry`, remove it; returns what was found.

    Waits for an `up` or `down` of this home that goes on; a dry look does not.
    """
    if dry:
        return list(_find_leftovers())
    with stack_lock():
        found = list(_find_leftovers())
        for leftover in found:
            leftover.remove()
    return found


def _find_leftovers() -> Iterator[Leftover]:
    yield from _leftovers_of_stack()
    for path in leftovers_of_dead():
        yield Leftover(
            "of a process that no longer exists", path, lambda path=path: remove_leftovers([path])
        )
    for path in home().iterdir():
        draft = _RECORD_DRAFT.fullmatch(path.name)
        if draft and is_over(int(draft.group(1))):
            yield Leftover("draft of a record", path, lambda path=path: path.unlink(True))
    for path in (home() / "store").rglob(".*"):
        if _STORE_DRAFT.fullmatch(path.name) and _age(path) > DRAFT_SECONDS:
            yield Leftover("draft in the store", path, lambda path=path: path.unlink(True))
    for path in (home() / "cache").glob("artifacts/*/*/a*"):
        if _COPY_DRAFT.fullmatch(path.name) and _age(path) > DRAFT_SECONDS:
            yield Leftover("part of a copy", path, lambda path=path: shutil.rmtree(path, True))


def _leftovers_of_stack() -> Iterator[Leftover]:
    """The record and the sockets of a stack of which no process is left."""
    record = load_record()
    if record is not None and (
        any(is_alive(service) for service in record.services.values()) or family([], record.mark)
    ):
        return
    if record is not None and record.services:
        gone = record.model_copy(update={"services": {}})
        yield Leftover(
            "record of a stack that no longer exists",
            home() / "stack.json",
            lambda: save_record(gone),
        )
    folder = runtime_dir()
    if folder.exists() and not _in_use(folder):
        yield Leftover(
            "sockets of a stack that no longer exists", folder, lambda: shutil.rmtree(folder, True)
        )


def _in_use(folder: Path) -> bool:
    """Return whether a process names the folder on its command line, as every part of Ray does."""
    name = f"{folder}/"
    for process in psutil.process_iter(["cmdline"]):
        if any(name in part for part in process.info["cmdline"] or ()):
            return True
    return False


def _age(path: Path) -> float:
    try:
        return time.time() - path.lstat().st_mtime
    except FileNotFoundError:
        return 0.0


@dataclass(frozen=True, slots=True)
class HostState:
    """One host as of now. Example: HostState("10.0.0.7", "node-7", True, False, 8, 61.5)"""

    address: str
    name: str
    is_alive: bool
    is_head: bool
    gpus: int
    free_gib: float
    """memory"""


def cluster_hosts(stack: Stack) -> list[HostState]:
    """The head's host first, then by address. Of one that left and came back, how it is now; none
    on a host that only joined, or while the head does not answer."""
    if stack.head:
        return []
    return hosts_in(get_json(f"{stack.ray_dashboard}/nodes?view=summary"))


def hosts_in(answer: object) -> list[HostState]:
    """Return what Ray's dashboard said of the cluster's nodes, by hosts."""
    match answer:
        case {"data": {"summary": [*nodes]}}:  # pyrefly: ignore[not-callable]
            states = [_state(node) for node in nodes]
        case _:
            return []
    alive_last = sorted(states, key=lambda state: state.is_alive)
    now = {state.address: state for state in alive_last}
    return sorted(now.values(), key=lambda state: (not state.is_head, state.address))


def _state(node: Any) -> HostState:
    raylet = node["raylet"]
    memory = node.get("mem") or [0, 0]  # none of a node that ended
    return HostState(
        address=raylet.get("nodeManagerAddress") or node.get("ip", ""),
        name=raylet.get("nodeManagerHostname") or node.get("hostname", ""),
        is_alive=raylet.get("state") == "ALIVE",
        is_head=bool(raylet.get("isHeadNode")),
        gpus=int((raylet.get("resourcesTotal") or {}).get("GPU", 0)),
        free_gib=memory[1] / _GIB,
    )


def doctor() -> list[Check]:
    """Run every check, in the order in which problems should be repaired. Nothing is changed."""
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(_guarded, _CHECKS))


def _guarded(check: Callable[[], Check]) -> Check:
    """A check that itself breaks is a finding too."""
    try:
        return check()
    except (OSError, TributaryError, ImportError) as error:
        name = check.__name__.strip("_").replace("_", " ")
        return Check(name, False, f"{type(error).__name__}: {error}", "see the error")


def _sandbox() -> Check:
    from infra.sandbox.kinds import bubblewrap
    from infra.sandbox.python import level

    found = level()
    repair = (
        "allow user namespaces or run a kernel with Landlock, or `sandbox: unsafe` in the recipe"
    )
    told = f"level `{found.name}`: {found}"
    if found.holds and "namespaces" not in found.mechanisms:
        told += "; not confined: a program keeps your user and sees that files exist"
    agents = bubblewrap.refusal()
    told += f"; no agents: {agents}" if agents else "; agents: bubblewrap"
    if os.geteuid() == 0 and "namespaces" in found.mechanisms:
        told += "; root is nobody inside"
    return Check("sandbox", found.holds, told, "" if found.holds else repair)


def _home() -> Check:
    folder = home()
    probe = folder / f".doctor.{os.getpid()}"
    probe.write_text("")
    probe.unlink()
    free = shutil.disk_usage(folder).free / 2**30
    ok = free >= FREE_GIB
    repair = "" if ok else "free space, or set TRIBUTARY_HOME to a larger disk"
    return Check("home", ok, f"{folder}: writable, {free:.1f} GiB free", repair)


def _sockets() -> Check:
    length = len(os.fsencode(runtime_dir() / "ray")) + RAY_SOCKET_BYTES
    ok = length <= SOCKET_PATH_BYTES
    told = f"longest socket path: {length} of {SOCKET_PATH_BYTES} bytes"
    return Check("sockets", ok, told, "" if ok else "set TMPDIR to a shorter folder")


def _leftovers() -> Check:
    found = clean(dry=True)
    told = f"{len(found)} files or folders that a crash left behind" if found else "none"
    return Check("leftovers", not found, told, "`tributary doctor --clean`" if found else "")


def _ports() -> Check:
    record = load_record()
    if record is None or any(is_alive(r) for r in record.services.values()):
        return Check("ports", True, "chosen free by `tributary up`, kept in stack.json", "")
    taken = [f"{name} {port}" for name, port in record.ports.items() if not is_free(port)]
    # `up` replaces them by itself; only links that someone kept will change.
    told = (
        f"taken since the last `up`: {', '.join(taken)}; others will be used" if taken else "free"
    )
    return Check("ports", True, told, "")


def _stack() -> Check:
    record = load_record()
    if record is None or not record.services:
        left = runtime_dir().exists()
        told = f"down, but {runtime_dir()} is left over" if left else "down"
        return Check("stack", not left, told, "`tributary down`" if left else "")
    dead = [name for name, found in record.services.items() if not is_alive(found)]
    if len(dead) == len(record.services):
        orphans = len(family([], record.mark))
        told = f"all services ended without `tributary down`; {orphans} processes are left over"
        return Check("stack", False, told, "`tributary up`, or `tributary down`")
    silent = [s.name for s in services(record) if s.name not in dead and not s.answers()]
    broken = [f"{name} is dead" for name in dead] + [f"{name} is silent" for name in silent]
    return Check("stack", not broken, "; ".join(broken) or "up", "`tributary up`" if broken else "")


def _network() -> Check:
    record = load_record()
    if record is None or not any(is_alive(found) for found in record.services.values()):
        return Check("network", True, "nothing listens", "")
    return exposure(record)


def _hosts() -> Check:
    record = load_record()
    running = record if record and any(is_alive(x) for x in record.services.values()) else None
    if running is None:
        return Check("hosts", True, "nothing runs", "")
    if running.head:
        return Check("hosts", True, f"this one has joined the stack of {running.head}", "")
    hosts = cluster_hosts(running)
    lost = [host.address for host in hosts if not host.is_alive]
    told = f"{len(hosts) - len(lost)} up"
    if not lost:
        return Check("hosts", True, told, "")
    # Work goes on without it, and Ray remembers hosts that left on purpose, too.
    again = f"`tributary up --join {running.ray_address}` there lets it work again"
    return Check("hosts", True, f"{told}; {', '.join(lost)} left; {again}", "", warns=True)


def _tracking() -> Check:
    kept = refused_folder()
    entries, files = num_refused()
    if not entries and not files:
        return Check("tracking", True, "MLflow has refused nothing", "")
    told = f"MLflow refused {entries} entries" + (f" and {files} files" if files else "")
    told += f": they are kept in {kept}, each with its reason; delete the folder when you know them"
    return Check("tracking", True, told, "", warns=True)


_CHECKS: tuple[Callable[[], Check], ...] = (
    python_version, packages, torch_build, engines, kernels, _sandbox, _home, _sockets, _ports,
    _stack, _hosts, _network, _leftovers, _tracking,
)  # fmt: skip
