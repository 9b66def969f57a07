"""A resumed run keeps a result under the digest of what made it."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.load import load_recipe
from flows.post_train import plan_post_train
from flows.running.new_run import new_run
from flows.running.records import StageRecord
from flows.running.run import RecipeRun
from flows.running.tracked_run import TrackedRun
from infra.errors import InputError
from infra.store.artifacts import ArtifactStore, StageCheckpoints
from infra.user_files import InstalledFiles
from tasks.durable.attempts import RunPlace
from tasks.durable.claims import Claims, Owner
from tasks.durable.launch import LocalLauncher
from tasks.durable.stage_identity import stage_identity
from tasks.stage import Resources

pytestmark = pytest.mark.unit


class Warnings:
    def __init__(self) -> None:
        self.said: list[str] = []

    def line(self, text: str) -> None: ...
    def progress(self, done: int, total: int, message: str) -> None: ...
    def started(self, job: str, attempt: int, mine: bool) -> None: ...

    def warn(self, message: str) -> None:
        self.said.append(message)


class Resumed:
    """A run whose `base` failed on a folder that was repaired since."""

    def __init__(self, root: Path) -> None:
        self.folder, self.root = root / "model", root
        self.folder.mkdir()
        (self.folder / "config.json").write_text("broken")
        base = f"base={{folder: {self.folder}}}"
        recipe = load_recipe("cpu-demo", [base, f"storage.root=file://{root}/store"])
        self.base = plan_post_train(recipe)[0]
        self.begun = stage_identity(self.base.spec, {}).digest
        (self.folder / "config.json").write_text("repaired")
        self.present = stage_identity(self.base.spec, {}).digest
        record = new_run(recipe, "post-train", {}, in_process=True)
        self.artifacts = ArtifactStore(record.store, root / "cache")
        place = RunPlace(
            store=record.store, artifacts=self.artifacts, launcher=LocalLauncher(),
            home_id="home", run=record.run, pool=Resources(),
        )  # fmt: skip
        tracked = TrackedRun(None, recipe, record.run, "post-train")
        self.run = RecipeRun(record, recipe, place, InstalledFiles(None), tracked)
        self.known = StageRecord(name="base", kind="base", digest=self.begun, state="failed")
        self.watch = Warnings()

    def digest(self) -> str:
        return self.run._work(self.base, {}, self.known, self.watch)[0].digest


@pytest.fixture
def resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Resumed:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path / "home"))
    return Resumed(tmp_path)


def test_a_repaired_base_is_stored_under_its_own_digest(resumed: Resumed) -> None:
    assert resumed.begun != resumed.present
    assert resumed.digest() == resumed.present
    assert ["starts again" in line for line in resumed.watch.said] == [True]


def test_what_is_done_stays(resumed: Resumed) -> None:
    made = resumed.root / "made"
    made.mkdir()
    (made / "file").write_text("x")
    resumed.artifacts.commit(
        "base", resumed.begun, 1, made, identity={}, inputs={}, code={}, metrics={}, seeds={},
        mlflow_run_id="", seconds=1.0,
    )  # fmt: skip
    assert resumed.digest() == resumed.begun


def test_what_is_under_way_stays(resumed: Resumed) -> None:
    owner = Owner(home="elsewhere", launcher="ray", job="job", run="another")
    Claims(resumed.artifacts.store, "base", resumed.begun).take(1, owner)
    assert resumed.digest() == resumed.begun


def test_what_is_half_done_is_not_mixed(resumed: Resumed, tmp_path: Path) -> None:
    store = resumed.artifacts.store
    StageCheckpoints(store, "base", resumed.begun, 1, tmp_path).note(
        "rollouts", 0, b"a finished rollout"
    )
    with pytest.raises(InputError, match="unfinished work was made by the old version"):
        resumed.digest()
