"""Where cells run: a Ray of their own, the undisturbed reference, and one store for each cell."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from infra.traces import dead_traces
from tests.chaos.cells import Cell
from tests.chaos.recovery import End
from tests.ray_parts import own_ray

RUN_S = 180.0
MOMENT_S = 60.0
TRIES = 3
"""the run, and `tributary resume` after it"""
FULL_S = 3.0
"""how long a store that is full stays so"""
STALL_S = 20
"""what a stage whose parts may hang can stand still; a busy machine alone must not reach it"""
LEFT_S = 15.0
"""until a rank that died idle has a successor, which cleans up"""
_TITLES = {
    "rank": "ray::TrainerRank",
    "server": "sglang::scheduler",
    "manager": "ray::FleetManager",
    "pool": "ray::TrainerPool",
}
_COUNTS = ("steps", "version", "generated_tokens", "train_tokens")
"""what a lost or doubled sample would change"""
CLI = ("-P", "-c", "import sys; from flows.cli import main; main(sys.argv[1:])")
"""Python's arguments for the command `tributary`, without its start script"""
_ROOT = Path(__file__).resolve().parents[2]
_TEMPORARY = tempfile.gettempdir()
_COMPILED = "torchinductor_*"
"""what torch compiles for one process serves the next"""
_REDONE = {"between-stages": ("rl", "evaluate")}


class Ground:
    """A home, a cluster, and the reference's store."""

    deployed: tuple[str, ...] = ()
    """further arguments of the flow process"""

    def __init__(self, home: Path, address: str) -> None:
        self.home, self._signals = home, home / "chaos"
        self._signals.mkdir()
        self._env = os.environ | {"RAY_ADDRESS": address}
        self._hit_at = 0.0
        self.left: list[str] = []
        """temporary files and shared memory that are left once it is closed"""

    def close(self) -> None:
        """Called when everything of this ground has ended."""
        temporary = Path(self._env["TMPDIR"])
        files = set(temporary.iterdir()) - set(temporary.glob(_COMPILED))
        self.left = sorted(map(str, files | set(dead_traces())))

    def reference(self) -> float:
        """Run the expert undisturbed; -> seconds."""
        began = time.monotonic()
        done = self._start("run", self._store("reference"), "reference").wait(600)
        if done != 0:
            raise RuntimeError(f"the undisturbed run failed: {self._log('reference')}")
        return time.monotonic() - began

    def run(self, cell: Cell, delay: float) -> End:
        """Disturb a run of the stages that the cell redoes; everything else is cached."""
        began = time.monotonic()
        name = cell.name.replace(" ", "-")
        store = self._copy(name, _REDONE.get(cell.moment, ("rl",)))
        with Progress(store) as progress:
            said = self._disturbed(cell, name, store, delay, progress)
        recovery = progress.after(self._hit_at)
        differs = self._differs(store)
        leftovers = self._leftovers(store)
        for process in self._jobs(store):  # what is left must not reach another cell's moment
            process.kill()
        failed = said if said.startswith("!") else ""
        problem = "; ".join(part for part in (failed, differs, leftovers) if part)
        seconds = time.monotonic() - began
        shutil.rmtree(store.parent, ignore_errors=True)
        return End(cell.name, not problem, seconds, recovery, problem or said)

    def _disturbed(
        self, cell: Cell, name: str, store: Path, delay: float, progress: Progress
    ) -> str:
        """Run, kill, resume until it is done; -> what was needed. A leading ! says it failed."""
        (self._signals / "reached").unlink(missing_ok=True)
        if cell.moment != "between-stages":
            (self._signals / f"armed-{cell.moment}").touch()
        # The manager finds a hung server by itself; the other parts are the watchdog's.
        hangs = cell.hit == "freeze" and cell.part != "server-frozen"
        stall = [f"resources.default.stall_seconds={STALL_S}"] if hangs else []
        flow = self._start("run", store, name, *stall)
        try:
            if not self._await_moment(cell, store, flow):
                return "! the moment never came: " + self._log(name)
            time.sleep(delay)
            self._hit_at = time.time()
            if cell.part == "server":
                progress.await_part(self._new_servers())
            killed = self.hit(cell, store, flow)
            (self._signals / "reached").unlink(missing_ok=True)
            self.mend(cell)
            if not killed:
                return f"! no {cell.part} to kill"
            for tries in range(TRIES):
                code = flow.wait(RUN_S)
                if code == 0:
                    how = f"resumed {tries} times" if tries else "went on by itself"
                    return f"{how}, {self._attempts(store)} attempts"
                flow = self._start("resume", store, name)
            return "! never completed: " + self._log(name)
        except subprocess.TimeoutExpired:
            return f"! not done after {RUN_S:.0f} s: " + self._log(name)
        finally:
            for armed in self._signals.glob("armed-*"):
                armed.unlink()
            if flow.poll() is None:
                flow.kill()
                flow.wait()

    def _await_moment(self, cell: Cell, store: Path, flow: subprocess.Popen[bytes]) -> bool:
        deadline = time.monotonic() + MOMENT_S
        manifests = store / "artifacts" / "rl"
        while time.monotonic() < deadline:
            if cell.moment != "between-stages":
                came = (self._signals / "reached").exists()
            else:
                came = any(manifests.glob("*/manifest.json"))
            if came:
                return True
            if flow.poll() is not None:
                return False
            time.sleep(0.01)
        return False

    def hit(self, cell: Cell, store: Path, flow: subprocess.Popen[bytes]) -> bool:
        """Disturb the part; False when there is none."""
        if cell.hit == "full":
            (self._signals / "full").touch()
            return True
        if cell.part == "flow":
            flow.kill()
            return True
        part = cell.part.removesuffix("-frozen")
        found = [p for p in self.processes() if is_part(p, part, str(store))]
        for process in found[:1]:
            process.send_signal(signal.SIGSTOP if cell.hit == "freeze" else signal.SIGKILL)
        return bool(found)

    def _new_servers(self) -> Callable[[], bool]:
        """Whether there is a server that was not there when this was asked for."""

        def servers() -> set[int]:
            return {p.pid for p in self.processes() if is_part(p, "server", "")}

        known = servers()
        return lambda: not servers() <= known

    def mend(self, cell: Cell) -> None:
        """What a person, or the world, does some time after the hit."""
        if cell.hit == "full":
            time.sleep(FULL_S)
            (self._signals / "full").unlink()

    def _copy(self, name: str, kinds: tuple[str, ...]) -> Path:
        """The reference's store less the artifacts of the stages that are to be redone."""
        store = self._store(name)
        shutil.copytree(
            self._store("reference") / "artifacts", store / "artifacts", copy_function=os.link
        )
        for kind in kinds:
            shutil.rmtree(store / "artifacts" / kind / self._digest(kind))
        return store

    def _digest(self, kind: str) -> str:
        """Folder of the reference's only artifact of a kind."""
        (manifest,) = self._store("reference").glob(f"artifacts/{kind}/*/manifest.json")
        return manifest.parent.name

    def _differs(self, store: Path) -> str:
        """What of the redone RL stage is not as in the reference; empty when nothing."""
        short = self._digest("rl")
        path = store / "artifacts" / "rl" / short / "manifest.json"
        if not path.exists():
            return "no artifact"
        found, expected = (
            _content(p / "artifacts" / "rl" / short / "manifest.json")
            for p in (store, self._store("reference"))
        )
        return ", ".join(f"{key} differs" for key in expected if found.get(key) != expected[key])

    def _attempts(self, store: Path) -> int:
        """At the RL stage: one if its job outlived the kill."""
        return len(list(store.glob("attempts/rl/*/*.claim.json")))

    def processes(self) -> list[psutil.Process]:
        """All that belongs to this ground."""
        return psutil.Process().children(recursive=True)

    def _leftovers(self, store: Path) -> str:
        """What the run left that nobody needs any more, and nobody removed within seconds."""
        deadline = time.monotonic() + LEFT_S
        while (left := self._left(store)) and time.monotonic() < deadline:
            time.sleep(0.2)
        return f"left over: {', '.join(left)}" if left else ""

    def _left(self, store: Path) -> list[str]:
        jobs = [f"job {process.pid}" for process in self._jobs(store)]
        manifests = store.glob("artifacts/*/*/manifest.json")
        made = {path.parent / f"a{json.loads(path.read_text())['attempt']}" for path in manifests}
        rivals = set(store.glob("artifacts/*/*/a*")) - made
        paths = [*dead_traces(), *store.glob("checkpoints/*/*"), *rivals]
        return [*jobs, *(str(path) for path in paths)]

    def _jobs(self, store: Path) -> list[psutil.Process]:
        return [p for p in self.processes() if is_part(p, "job", str(store))]

    def _store(self, name: str) -> Path:
        return self.home / "stores" / name / "store"

    def _start(
        self, command: str, store: Path, name: str, *changes: str
    ) -> subprocess.Popen[bytes]:
        store.mkdir(parents=True, exist_ok=True)
        resume = [*CLI, "resume", name]
        run = ["-P", "-m", "tests.chaos.flow", str(store), name, *self.deployed, *changes]
        program = resume if command == "resume" else run
        with (self.home / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, *program],
                env=self._env,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )

    def _log(self, name: str) -> str:
        return (self.home / f"{name}.log").read_text(errors="replace")[-1500:]


class Progress:
    """Notes when the run wrote work into its store (rollouts, checkpoints, artifacts), when it
    claimed an attempt, and when the part that was killed was there again."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._work: list[float] = []
        self._claims: list[float] = []
        self._back: list[float] = []
        self._is_back: Callable[[], bool] | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Progress:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def after(self, hit: float) -> float:
        """Seconds from the hit to the next work; -1 when none was seen.

        Where the hit cost the attempt, what that one still wrote does not count, nor what was on
        its way before the part was there again.
        """
        begun = max([hit, *self._claims, *self._back])
        return min((t - hit for t in self._work if t > begun), default=-1.0)

    def await_part(self, is_back: Callable[[], bool]) -> None:
        self._is_back = is_back

    def _watch(self) -> None:
        written: set[str] = set()
        claimed: set[str] = set()
        while not self._over.wait(0.1):
            work = self._found("checkpoints/rl") | self._found("artifacts")
            claims = {path for path in self._found("attempts/rl") if path.endswith(".claim.json")}
            if claims - claimed:
                self._claims.append(time.time())
            if work - written:
                self._work.append(time.time())
            written, claimed = work, claims
            if self._is_back is not None and self._is_back():
                self._back.append(time.time())
                self._is_back = None

    def _found(self, folder: str) -> set[str]:
        """All below a folder; unlike a glob, this stands what is removed meanwhile."""
        below = os.walk(self._store / folder)
        return {os.path.join(top, name) for top, *both in below for names in both for name in names}


@contextmanager
def fresh_home() -> Generator[Path]:
    """An empty home, and the environment in which its processes can be stopped at a moment. They,
    and this process, have a folder for temporary files of their own; its name is short, for Ray's
    sockets are below it."""
    home = Path(tempfile.mkdtemp(prefix="tr-chaos-", dir=_TEMPORARY))
    temporary = tempfile.mkdtemp(prefix="tr-", dir=_TEMPORARY)
    settings = {
        "TRIBUTARY_HOME": str(home),
        "CHAOS_FOLDER": str(home / "chaos"),
        "PYTHONPATH": f"{Path(__file__).with_name('inject')}{os.pathsep}{_ROOT}",
        "TMPDIR": temporary,
    }
    kept = {name: os.environ.get(name) for name in settings}
    os.environ |= settings
    tempfile.tempdir = temporary
    try:
        yield home
    finally:
        for name, value in kept.items():
            os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)
        tempfile.tempdir = kept["TMPDIR"]
        shutil.rmtree(home, ignore_errors=True)
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def ground() -> Generator[Ground]:
    """A fresh home with a cluster; both end with the block."""
    with fresh_home() as home:
        with own_ray(num_gpus=0) as address:
            place = Ground(home, address)
            yield place
        place.close()


def jitter(seed: int, cell: Cell) -> float:
    """Seconds between the moment and the kill: the same for a seed and a cell."""
    return random.Random(f"{seed}/{cell.name}").uniform(0.0, 0.3)


def is_part(process: psutil.Process, part: str, store: str) -> bool:
    """Whether it is such a part; a job, of this store."""
    try:
        line = " ".join(process.cmdline())
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
    except psutil.Error:
        return False
    if part == "job":
        return "tasks.job" in line and store in line
    if part == "router":
        return line.startswith("sglang::router") or "engines.sglang.route" in line
    return line.startswith(_TITLES[part])


def _content(path: Path) -> dict[str, Any]:
    """What must be equal: checksums of all files, and the counts."""
    metrics = json.loads(path.read_text())["metrics"]
    return checksums(path) | {name: metrics[name] for name in _COUNTS}


def checksums(manifest: Path) -> dict[str, str]:
    """Of an artifact's files, by path."""
    files = json.loads(manifest.read_text())["files"]
    return {file["path"]: file["sha256"] for file in files}


def pin_threads() -> None:
    """Two spinning OpenMP pools on two cores slow each other many times over."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
