"""What is done to a host while RL works on it. Nothing of it may be seen in the result."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.programs.hosts.ground import Ground, Mode
from tests.programs.hosts.machines import OUTSIDE, Machine

CUT_S = 20.0
CLOCK_S = 300
"""how far a host's clock is from the others'"""
MODES: Sequence[Mode] = ("synchronous", "asynchronous")
_HIDDEN_S = 20.0
"""after RL began"""
_LONGEST_HIDDEN_S = 300.0
_LOOK_S = 0.5
_OTHER_CLOCK = Path(__file__).with_name("other_clock.c")


@dataclass(frozen=True, slots=True)
class Disturbance:
    """Of one host."""

    name: str
    strike: Callable[[Ground, Machine], object] | None = None
    """once RL has trained a step"""
    around: Callable[[Ground, Machine, str], AbstractContextManager[object]] | None = None
    """before the run of this name begins, and after it"""
    host: int = 0
    """which of those that joined: the first has a trainer rank and a server, the second a server"""


@dataclass(frozen=True, slots=True)
class Cell:
    """A disturbance of a run of this mode."""

    disturbance: Disturbance
    mode: Mode

    @property
    def name(self) -> str:
        """Example: agent-killed-synchronous"""
        return f"{self.disturbance.name.replace(' ', '-')}-{self.mode}"


def _kill(ground: Ground, host: Machine) -> None:
    """All its processes at once, and its network."""
    host.kill()


def _cut(ground: Ground, host: Machine) -> None:
    """The network between the head and the host; both reach everybody else."""
    with host.cut_off(ground.head.address), ground.head.cut_off(host.address):
        time.sleep(CUT_S)


def _kill_agent(ground: Ground, host: Machine) -> None:
    agents = [pid for pid, line in host.processes().items() if line.startswith("ray::HostProcess")]
    for pid in agents:
        os.kill(pid, signal.SIGKILL)
    if not agents:
        raise RuntimeError(f"host {host.name} has no agent")


@contextmanager
def _damaged_cache(ground: Ground, host: Machine, name: str) -> Generator[None]:
    """All weights that the host fetched for earlier runs have other bytes when RL begins."""
    files = _weights(host)
    if not files:
        raise RuntimeError(f"host {host.name} has fetched nothing")
    for file in files:
        file.write_bytes(bytes(file.stat().st_size))
    yield
    if not any(any(file.read_bytes()) for file in _weights(host)):
        raise RuntimeError(f"host {host.name} has repaired nothing, so it used what was damaged")


@contextmanager
def _hidden_store(ground: Ground, host: Machine, name: str) -> Generator[None]:
    """A host that has nothing of what RL needs does not reach the store when it begins."""
    for folder in host.home.glob("cache/artifacts"):
        folder.rename(folder.with_name(f"gone-{time.monotonic_ns()}"))
    over, fetched_meanwhile = threading.Event(), list[Path]()

    def hide() -> None:
        with host.cut_off(OUTSIDE):
            deadline = time.monotonic() + _LONGEST_HIDDEN_S
            while time.monotonic() < deadline and not over.wait(_LOOK_S):
                if ground.has_claimed(name):
                    over.wait(_HIDDEN_S)
                    break
            fetched_meanwhile.extend(_weights(host))

    hiding = threading.Thread(target=hide)
    hiding.start()
    try:
        yield
    finally:
        over.set()
        hiding.join()
    if fetched_meanwhile or not _weights(host):
        raise RuntimeError(f"host {host.name} did not need the store while that was hidden")


@contextmanager
def _other_clock(ground: Ground, host: Machine, seconds: int) -> Generator[None]:
    """All programs on the host see another time of day; how fast it goes stays as it is."""
    library = host.work / "tmp" / _OTHER_CLOCK.with_suffix(".so").name
    compiled = ["cc", "-shared", "-fPIC", "-o", str(library), str(_OTHER_CLOCK), "-ldl"]
    subprocess.run(compiled, check=True)
    env = {"LD_PRELOAD": f"/tmp/{library.name}", "CLOCK_OFFSET_S": str(seconds)}
    _join_anew(ground, host, env)
    off = float(host.run("date", "+%s")) - time.time()
    if abs(off - seconds) > 30:
        raise RuntimeError(f"the clock of host {host.name} is {off:+.0f} s off, not {seconds:+d} s")
    try:
        yield
    finally:
        for variable in env:
            del host.env[variable]
        _join_anew(ground, host, {})


@contextmanager
def _slow_clock(ground: Ground, host: Machine, name: str) -> Generator[None]:
    with _other_clock(ground, host, -CLOCK_S):
        yield


@contextmanager
def _fast_clock(ground: Ground, host: Machine, name: str) -> Generator[None]:
    with _other_clock(ground, host, CLOCK_S):
        yield


def _see_clock(ground: Ground, host: Machine) -> None:
    """Whatever RL has on the host has the other clock."""
    without: list[str] = []
    for pid, line in host.processes().items():
        with suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            loaded = Path(f"/proc/{pid}/maps").read_text()
            if line.startswith(("ray::", "sglang::")) and _OTHER_CLOCK.stem not in loaded:
                without.append(line)
    if without:
        raise RuntimeError(f"these have the right clock: {', '.join(without)}")


def _weights(host: Machine) -> list[Path]:
    """What a host has of models' weights that it fetched from the store."""
    return list(host.home.glob("cache/artifacts/*/*/*/*.safetensors"))


def _join_anew(ground: Ground, host: Machine, env: dict[str, str]) -> None:
    host.tributary("down")
    host.env |= env
    ground.join(host)


LOST = Disturbance("host killed", _kill)
CUT = Disturbance("network cut", _cut)
DISTURBANCES = (
    LOST,
    CUT,
    Disturbance("agent killed", _kill_agent),
    Disturbance("cache corrupted", around=_damaged_cache),
    Disturbance("store hidden", around=_hidden_store),
    Disturbance("clock slow", _see_clock, _slow_clock),
    Disturbance("clock fast", _see_clock, _fast_clock),
    Disturbance("host without ranks killed", _kill, host=1),
)
CELLS = tuple(Cell(disturbance, mode) for disturbance in DISTURBANCES for mode in MODES)


def chosen(words: Sequence[str]) -> list[Cell]:
    """The cells whose names begin with one of the words; all without any. Raises ValueError."""
    for word in words:
        if not any(cell.name.startswith(word) for cell in CELLS):
            names = ", ".join(cell.name for cell in CELLS)
            raise ValueError(f"no cell begins with `{word}`; there are {names}")
    return [cell for cell in CELLS if not words or cell.name.startswith(tuple(words))]
