"""The durable stage with real jobs in processes of their own: one job a stage, whatever happens.

The stage is a `base` whose tokenizer is trained on a user's curriculum: its hook file travels with
the job and misbehaves as a file beside it says.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from infra.errors import StageFailed
from infra.store.artifacts import ArtifactRecord, ArtifactStore
from infra.store.store import Store
from infra.user_files import UserFiles, install_hooks
from tasks.base.spec import BaseSettings, BaseSpec, RandomModel
from tasks.domain import CurriculumSpec
from tasks.durable import attempts, launch
from tasks.durable.attempts import RunPlace, StageLetGo, StageStopped, StageWork, run_stage
from tasks.durable.claims import Claims, Owner
from tasks.durable.launch import LocalLauncher, log_path
from tasks.durable.protocol import JobInput, job_path
from tasks.durable.stage_identity import stage_identity
from tasks.stage import Resources, StageResources
from tests.parts.machine import until

pytestmark = pytest.mark.integration

MOODY = '''
"""A curriculum that does what a file says, once."""
import os, resource, signal, time
from pathlib import Path
from engines.types import Demonstration, Message, Problem

class Moody:
    def __init__(self, mood):
        self.mood = Path(mood)

    def environment(self):
        return None

    def problems(self, split, count, seed, start=0):
        return []

    def demonstrations(self, count, seed):
        mood, _, rest = self.mood.read_text().partition("\\n")
        self.mood.write_text(rest)
        if mood == "raise":
            raise RuntimeError("no demonstrations today")
        if mood == "exit":
            raise SystemExit(3)
        if mood == "hoard":
            resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
            bytearray(4 << 30)
        if mood == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if mood == "freeze":
            os.kill(os.getpid(), signal.SIGSTOP)
        if mood == "wait":
            while self.mood.with_suffix(".hold").exists():
                time.sleep(0.02)
        problem = Problem("p", "moody", (Message("user", "a b c"),))
        return [Demonstration(problem, (Message("assistant", "c b a"),))] * count
'''


class Seen:
    """A watch that remembers."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.jobs: list[tuple[str, int, bool]] = []
        self.begun = threading.Event()

    def line(self, text: str) -> None: ...

    def progress(self, done: int, total: int, message: str) -> None: ...

    def warn(self, message: str) -> None:
        self.warnings.append(message)

    def started(self, job: str, attempt: int, mine: bool) -> None:
        self.jobs.append((job, attempt, mine))
        self.begun.set()


class Bench:
    """One stage, and any number of runs that want it."""

    def __init__(self, folder: Path) -> None:
        self.mood = folder / "mood"
        self.mood.write_text("")
        self.hold = folder / "mood.hold"
        self.store = Store(f"file://{folder}/store")
        self.launchers: list[LocalLauncher] = []
        random = RandomModel(
            hidden_size=16, layers=1, heads=2, kv_heads=1, head_dim=8, ffn_size=16, vocab_size=300,
            tokenizer_texts=8,
        )  # fmt: skip
        curriculum = CurriculumSpec(name="moody:Moody", options={"mood": str(self.mood)})
        spec = BaseSpec(settings=BaseSettings(random=random), curricula=[curriculum])
        self.files = UserFiles(hooks={"moody.py": MOODY.encode()})
        digest = stage_identity(spec, {}, install_hooks(self.files)).digest
        self.work = StageWork("base", spec, {}, StageResources(), digest)
        self.claims = Claims(self.store, "base", digest)

    def place(
        self, run: str, home: str = "one", expiry: float = 60.0, silent: float = 120.0
    ) -> RunPlace:
        launcher = LocalLauncher()
        self.launchers.append(launcher)
        return RunPlace(
            store=self.store, artifacts=ArtifactStore(self.store, self.mood.parent / "cache"),
            launcher=launcher, home_id=home, run=run, pool=Resources(),
            hooks=self.files, poll_seconds=0.05, expiry_seconds=expiry,
            silent_seconds=silent, retry_seconds=0.05,
        )  # fmt: skip

    def run(self, place: RunPlace, seen: Seen | None = None) -> tuple[ArtifactRecord, bool]:
        return run_stage(self.work, place, seen or Seen())


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path / "home"))
    bench = Bench(tmp_path)
    yield bench
    bench.hold.unlink(missing_ok=True)
    for launcher in bench.launchers:
        for job in list(launcher._children):
            launcher.stop(job)


def test_a_stage_runs_once_and_is_found_afterwards(bench: Bench) -> None:
    made, cached = bench.run(bench.place("first"))
    again, cached_again = bench.run(bench.place("second"))
    assert (cached, cached_again) == (False, True)
    assert again == made
    assert bench.place("x").artifacts.local(made).joinpath("config.json").is_file()


def test_two_runs_at_once_share_one_job_also_from_two_homes(bench: Bench) -> None:
    bench.mood.write_text("wait\n")
    bench.hold.touch()
    seen = [Seen(), Seen(), Seen()]
    places = [bench.place("a"), bench.place("b"), bench.place("c", home="two")]
    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(bench.run, p, s) for p, s in zip(places, seen, strict=True)]
        for one in seen:
            assert one.begun.wait(30)
        bench.hold.unlink()
        records = [future.result() for future in futures]
    assert len({record.digest for record, _ in records}) == 1
    assert {job for one in seen for job, _, _ in one.jobs} == {seen[0].jobs[0][0]}
    assert sum(mine for one in seen for _, _, mine in one.jobs) == 1


@pytest.mark.parametrize(
    ("mood", "cause"),
    [("raise", "RuntimeError: no demonstrations today"), ("exit", "SystemExit: 3")],
)
def test_bad_input_is_told_in_a_few_lines_and_nobody_is_told_to_resume(
    bench: Bench, mood: str, cause: str
) -> None:
    bench.mood.write_text(f"{mood}\n")
    seen = Seen()
    with pytest.raises(StageFailed) as caught:
        bench.run(bench.place("today"), seen)
    said = str(caught.value)
    assert f"curriculum 'moody:Moody': demonstrations: raised {cause}" in said
    assert "resume" not in said
    assert "Traceback" not in said
    assert len(said.splitlines()) < 6
    assert "Traceback" in log_path(seen.jobs[-1][0]).read_text()
    assert len(seen.jobs) == 1
    assert bench.run(bench.place("today"))[1] is False  # repaired, the next one makes it


def test_too_little_memory_names_what_to_lower_and_is_not_tried_again(bench: Bench) -> None:
    bench.mood.write_text("hoard\n" * 3)
    seen, place = Seen(), bench.place("run")
    with pytest.raises(StageFailed, match=r"stage base failed: MemoryError") as caught:
        bench.run(replace(place, pool=Resources(concurrent_stages=2)), seen)
    assert "resources.concurrent_stages: 2 -> 1" in str(caught.value)
    assert "resume" not in str(caught.value)
    assert len(seen.jobs) == 1


def test_attempts_that_may_help_wait_longer_each_time(bench: Bench) -> None:
    assert [attempts.pause_after(tries, 2.0) for tries in (1, 2, 3, 4)] == [2.0, 10.0, 50.0, 60.0]
    bench.mood.write_text("die\n")
    seen, place = Seen(), replace(bench.place("run"), retry_seconds=3600.0)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(bench.run, place, seen)
        until(lambda: bool(seen.warnings))
        assert "trying again in 60 s" in seen.warnings[0]
        place.cancelled.set()
        with pytest.raises(StageStopped):
            running.result(timeout=10)


def test_a_killed_job_is_tried_again(bench: Bench) -> None:
    bench.mood.write_text("die\n")
    seen = Seen()
    bench.run(bench.place("run"), seen)
    assert [attempt for _, attempt, _ in seen.jobs] == [1, 2]
    assert "killed" in seen.warnings[0]


def test_a_job_that_hangs_as_a_whole_is_ended_and_tried_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "STOP_SECONDS", 0.5)  # it ignores SIGTERM
    bench.mood.write_text("freeze\n")
    seen = Seen()
    place = replace(bench.place("run", silent=7.0), begin_seconds=60.0)
    bench.run(place, seen)  # a heartbeat comes every 5 s
    assert [attempt for _, attempt, _ in seen.jobs] == [1, 2]


def test_a_job_that_hangs_before_its_first_heartbeat_is_tried_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "STOP_SECONDS", 0.5)

    class Freezing(LocalLauncher):
        def submit(self, job: str, arguments: list[str], env: Mapping[str, str]) -> None:
            stop = ["-c", "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"]
            super().submit(job, stop if job.endswith("-a1") else arguments, env)

    place, seen = bench.place("run", silent=22.0), Seen()  # looks every second
    bench.launchers.append(Freezing())
    bench.run(replace(place, launcher=bench.launchers[-1], begin_seconds=20.0), seen)
    assert [attempt for _, attempt, _ in seen.jobs] == [1, 2]


def test_a_job_that_dies_each_time_fails_the_stage(bench: Bench) -> None:
    bench.mood.write_text("die\n" * 5)
    with pytest.raises(StageFailed, match="attempt 3") as caught:
        bench.run(bench.place("run"))
    assert "tributary resume run" in str(caught.value)


def test_a_silent_attempt_of_another_home_expires(bench: Bench) -> None:
    owner = Owner(home="gone", launcher="local", job="nowhere", run="old")
    assert bench.claims.take(1, owner) is not None
    seen = Seen()
    record, cached = bench.run(bench.place("new", expiry=0.3), seen)
    assert not cached
    assert [attempt for _, attempt, _ in seen.jobs] == [1, 2]
    assert "/a2" in record.url


@pytest.mark.parametrize(
    ("run", "is_ours", "waits"),
    [
        ("run", False, "IN_FLIGHT_SECONDS"),  # its process is gone: a run has one at a time
        ("run", True, "SUBMIT_SECONDS"),  # another thread of this process is about to submit it
        ("other", False, "SUBMIT_SECONDS"),
    ],
)
def test_a_claim_whose_job_never_came_is_waited_for_as_long_as_its_owner_may_live(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, run: str, is_ours: bool, waits: str
) -> None:
    for name in ("IN_FLIGHT_SECONDS", "SUBMIT_SECONDS"):
        monkeypatch.setattr(attempts, name, 0.2 if name == waits else 3600.0)
    place, seen = bench.place("run"), Seen()
    job = attempts.job_id(run, bench.work, bench.store.root, 1)
    if is_ours:
        place.claimed.add(job)
    owner = Owner(home=place.home_id, launcher="local", job=job, run=run)
    assert bench.claims.take(1, owner) is not None
    bench.run(place, seen)
    assert [attempt for _, attempt, _ in seen.jobs] == [2]


def test_a_flow_that_comes_back_attaches_to_the_job_that_still_runs(bench: Bench) -> None:
    bench.mood.write_text("wait\n")
    bench.hold.touch()
    lost = bench.place("run")
    seen = Seen()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(bench.run, lost, seen)
        assert seen.begun.wait(30)
        back = Seen()
        second = pool.submit(
            bench.run, bench.place("run"), back
        )  # same run, another process's view
        assert back.begun.wait(30)
        bench.hold.unlink()
        assert first.result()[0] == second.result()[0]
    assert back.jobs == seen.jobs


def test_a_flow_that_lets_go_leaves_its_job_to_its_successor(bench: Bench) -> None:
    bench.mood.write_text("wait\n")
    bench.hold.touch()
    place, seen, successor = bench.place("run"), Seen(), Seen()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(bench.run, place, seen)
        assert seen.begun.wait(30)
        place.let_go.set()
        with pytest.raises(StageLetGo, match="run run"):
            running.result(timeout=10)
    with pytest.raises(StageLetGo):
        bench.run(place)  # nor does it start anything
    bench.hold.unlink()
    _, cached = bench.run(bench.place("run"), successor)
    assert not cached
    assert successor.jobs == seen.jobs


def test_a_cancelled_run_stops_its_job(bench: Bench) -> None:
    bench.mood.write_text("wait\n")
    bench.hold.touch()
    place, seen = bench.place("run"), Seen()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(bench.run, place, seen)
        assert seen.begun.wait(30)
        job = seen.jobs[0][0]
        until(lambda: bench.claims.pulse(1) != b"")
        place.cancelled.set()
        child = place.launcher._children[job]
        psutil.Process(child.pid).kill()
        with pytest.raises(StageStopped):
            running.result(timeout=30)


def test_what_a_job_is_given_holds_no_path_of_the_flow(bench: Bench) -> None:
    bench.run(bench.place("run"))
    claim = bench.claims.latest()
    assert claim is not None
    given = JobInput.model_validate_json(bench.store.read(job_path(claim.owner.job)))
    assert given.hooks == bench.files
    assert given.inputs == {}
