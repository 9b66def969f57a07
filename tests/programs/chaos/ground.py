"""Where cells run: a Ray of their own, undisturbed references, and one store for each cell."""

from __future__ import annotations

import fcntl
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from infra.processes.leftovers import leftovers_of_dead
from tests.parts.ray_parts import own_ray
from tests.programs.chaos.cells import Cell
from tests.programs.chaos.compare import made_from, manifests, unlike
from tests.programs.chaos.progress import Progress
from tests.programs.chaos.recovery import End
from tests.programs.chaos.scenarios import SCENARIOS, Scenario

RUN_S = 600.0
MOMENT_S = 600.0
REFERENCE_S = 900.0
TRIES = 3
"""the run, and `tributary resume` after it"""
PASSING_S = {"full": 3.0, "slow": 5.0, "torn": 0.0, "refusing": 4.0, "garbage": 4.0}
"""hits that pass: how long it takes until whoever disturbs the run has put it right"""
STALL_S = 20
"""what a stage whose parts may hang can stand still; a busy machine alone must not reach it"""
LEFT_S = 15.0
"""until a rank that died idle has a successor, which cleans up"""
_PART_S = 30.0
"""in which what a cell hits is there"""
_LINES = {
    "rank": "ray::TrainerRank",
    "server": "sglang::scheduler",
    "owner": "ray::DeviceOwner",
    "sandbox": "confine/launcher.py",
    "reward-process": "rewards/mathematics/math_worker.py",
    "rollout-worker": "ray::RolloutWorkerActor",
}
"""what is in the command line of each"""
CLI = ("-P", "-c", "import sys; from flows.command.main import main; main(sys.argv[1:])")
"""Python's arguments for the command `tributary`, without its start script"""
_ROOT = Path(__file__).resolve().parents[3]
_TEMPORARY = tempfile.gettempdir()
_COMPILED = "torchinductor_*"
"""what torch compiles for one process serves the next"""


class Ground:
    """A home, a cluster, and the stores of runs on them."""

    deployed: tuple[str, ...] = ()
    """further arguments of the flow process"""

    def __init__(self, home: Path, address: str, references: Path | None) -> None:
        """`references`: a folder of undisturbed runs that several grounds share."""
        self.home, self._signals = home, home / "chaos"
        self._references = references or home / "references"
        self._signals.mkdir()
        self._env = os.environ | {"RAY_ADDRESS": address}
        self._hit_at = math.inf
        self.left: list[str] = []
        """temporary files and shared memory that are left once it is closed"""

    def close(self) -> None:
        """Called when everything of this ground has ended."""
        temporary = Path(self._env["TMPDIR"])
        files = set(temporary.iterdir()) - set(temporary.glob(_COMPILED))
        self.left = sorted(map(str, files | set(leftovers_of_dead())))

    def reference(self, name: str) -> Path:
        """The store of the scenario's undisturbed run, which is made at the first call."""
        store = self._references / name / "store"
        scenario, ready = SCENARIOS[name], store / "ready"
        if scenario.begins_as:
            self.reference(scenario.begins_as)
        store.mkdir(parents=True, exist_ok=True)
        with (store.parent / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not ready.exists():
                began = time.monotonic()
                failed = store / "failed"
                if not failed.exists():
                    self._share(scenario, store)
                    if self._start("run", store, f"reference-{name}", name).wait(REFERENCE_S):
                        failed.write_text(self._log(f"reference-{name}"))
                if failed.exists():
                    raise RuntimeError(
                        f"the undisturbed run of {name} failed: {failed.read_text()}"
                    )
                ready.touch()
                print(f"reference {name}: {time.monotonic() - began:.0f} s", file=sys.stderr)
        return store

    def _share(self, scenario: Scenario, store: Path) -> None:
        """Begin with what another scenario has made."""
        for kind in scenario.shared:
            made = self._references / scenario.begins_as / "store" / "artifacts" / kind
            shutil.copytree(
                made, store / "artifacts" / kind, copy_function=os.link, dirs_exist_ok=True
            )

    def run(self, cell: Cell, delay: float) -> End:
        """Disturb a run of the stage that is hit and those after it; the others are cached."""
        reference = self.reference(cell.how.scenario)
        began, self._hit_at = time.monotonic(), math.inf
        name = cell.name.replace(" ", "-")
        store = self._copy(cell, name, reference)
        with Progress(store, cell.how.stage) as progress:
            said = self._disturbed(cell, name, store, delay, progress)
        recovery = progress.after(self._hit_at)
        differs = unlike(SCENARIOS[cell.how.scenario], reference, store)
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
            (self._signals / f"armed-{cell.signal}").touch()
        # The owner finds a hung server by itself; the other parts are the watchdog's.
        hangs = cell.how.hit == "freeze" and cell.target != "server"
        stall = [f"resources.default.stall_seconds={STALL_S}"] if hangs else []
        flow = self._start("run", store, name, cell.how.scenario, *stall)
        try:
            if not self._await_moment(cell, store, flow):
                return "! the moment never came: " + self._log(name)
            time.sleep(delay)
            self._hit_at = time.time()
            if cell.part == "server":
                progress.await_part(self._new_servers())
            killed = self.hit(cell, store, flow)
            (self._signals / "reached").unlink(missing_ok=True)
            self.repair(cell)
            if not killed:
                return f"! no {cell.target} to kill among {self._names()}: {self._log(name)}"
            for tries in range(TRIES):
                code = flow.wait(RUN_S)
                if code == 0:
                    how = f"resumed {tries} times" if tries else "went on by itself"
                    return f"{how}, {self._attempts(cell, store)} attempts"
                flow = self._start("resume", store, name)
            return "! never completed: " + self._log(name)
        except subprocess.TimeoutExpired:
            return f"! not done after {RUN_S:.0f} s: " + self._log(name)
        finally:
            for flag in self._signals.iterdir():
                flag.unlink(missing_ok=True)
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
        if cell.how.hit in PASSING_S:
            (self._signals / cell.how.hit).touch()
            return True
        if cell.target == "flow":
            flow.kill()
            return True
        found = self._parts(cell, store)
        for process in found if cell.how.hit == "kill-all" else found[:1]:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGSTOP if cell.how.hit == "freeze" else signal.SIGKILL)
        return bool(found)

    def _parts(self, cell: Cell, store: Path) -> list[psutil.Process]:
        """What a cell hits. A server that the cell before this one killed may be starting still."""
        deadline = time.monotonic() + _PART_S
        while True:
            found = [p for p in self.processes() if is_part(p, cell.target, str(store))]
            if found or time.monotonic() > deadline:
                return found
            time.sleep(0.1)

    def _new_servers(self) -> Callable[[], bool]:
        """Whether there is a server that was not there when this was asked for."""

        def servers() -> set[int]:
            return {p.pid for p in self.processes() if is_part(p, "server", "")}

        known = servers()
        return lambda: not servers() <= known

    def repair(self, cell: Cell) -> None:
        """What a person, or the world, does some time after the hit."""
        if cell.how.hit in PASSING_S and cell.how.hit != "torn":  # which happens once by itself
            time.sleep(PASSING_S[cell.how.hit])
            (self._signals / cell.how.hit).unlink()

    def _copy(self, cell: Cell, name: str, reference: Path) -> Path:
        """The reference's artifacts minus those that are to be made again."""
        store = self._store(name)
        redone = made_from(reference, cell.how.stage)
        for artifact, manifest in manifests(reference).items():
            if artifact not in redone:
                target = store / "artifacts" / artifact
                shutil.copytree(manifest.parent, target, copy_function=os.link)
        return store

    def _attempts(self, cell: Cell, store: Path) -> int:
        """At the stage that was hit: one if its job outlived the kill."""
        return len(list(store.glob(f"attempts/{cell.how.stage}/*/*.claim.json")))

    def processes(self) -> list[psutil.Process]:
        """All that belongs to this ground."""
        return psutil.Process().children(recursive=True)

    def _names(self) -> str:
        """What runs here, e.g. "ray::TrainerRank, sglang::router"."""
        found: list[str] = []
        for process in self.processes():
            with suppress(psutil.Error):
                found.append(" ".join(process.cmdline())[-60:] or process.status())
        return ", ".join(found)

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
        paths = [*leftovers_of_dead(), *store.glob("checkpoints/*/*"), *rivals]
        return [*jobs, *(str(path) for path in paths)]

    def _jobs(self, store: Path) -> list[psutil.Process]:
        return [p for p in self.processes() if is_part(p, "job", str(store))]

    def _store(self, name: str) -> Path:
        return self.home / "stores" / name / "store"

    def _start(
        self, command: str, store: Path, name: str, scenario: str = "", *changes: str
    ) -> subprocess.Popen[bytes]:
        store.mkdir(parents=True, exist_ok=True)
        resume = [*CLI, "resume", name]
        flow = ["-P", "-m", "tests.programs.chaos.flow", str(store), name, scenario]
        run = [*flow, *self.deployed, *changes]
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
def ground(references: Path | None = None) -> Generator[Ground]:
    """A fresh home with a cluster; both end with the block."""
    with fresh_home() as home:
        with own_ray(num_gpus=0) as address:
            place = Ground(home, address, references)
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
        if part == "sandbox" and process.children():
            return False  # it only waits for the program
    except psutil.Error:
        return False
    if part == "job":
        return "tasks.durable.job" in line and store in line
    if part == "router":
        return line.startswith("sglang::router") or "engines.sglang.servers.router_main" in line
    return _LINES[part] in line


def pin_threads() -> None:
    """Two spinning OpenMP pools on two cores slow each other many times over."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
