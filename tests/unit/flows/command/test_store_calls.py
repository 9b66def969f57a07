"""How often commands ask the store: no more in a home of many runs than in a home of few."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.command.models.card import lineage_of
from flows.command.models.collect import survey
from flows.command.models.named_artifacts import find_artifact, locate_artifact
from flows.load import load_recipe
from flows.post_train import plan_post_train
from flows.reasons import stage_reasons
from flows.running.records import RunRecord
from infra.errors import InputError
from infra.store.store import Store
from tests.parts.recorded_run import exit_code
from tests.parts.run_records import artifact_store, put_artifact, put_run

pytestmark = pytest.mark.unit

SIZES = (4, 16)
"""earlier runs, each of two artifacts"""
KIND = "sft"


def digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


@pytest.fixture(autouse=True)
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that were asked for, in the order in which they were."""
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("flows.command.models.collect.YOUNG_S", -1.0)
    asked: list[str] = []

    def counted(real: Callable[[Store, str], Any]) -> Callable[[Store, str], Any]:
        def call(store: Store, path: str) -> Any:
            asked.append(path)
            return real(store, path)

        return call

    for name in ("read", "listdir", "exists", "size_of"):
        monkeypatch.setattr(Store, name, counted(getattr(Store, name)))
    return asked


class Home:
    """A home that grows: each run has two artifacts of its own."""

    def __init__(self, folder: Path) -> None:
        (folder / "made").mkdir()
        (folder / "made" / "weights").write_text("x" * 10)
        self._made = folder / "made"
        self.runs: list[RunRecord] = []

    def grow(self, runs: int) -> None:
        for number in range(len(self.runs), runs):
            first, second = digest(f"base {number}"), digest(f"sft {number}")
            put_artifact("base", first, self._made, run="its-own")
            put_artifact(KIND, second, self._made, {"model": first}, "its-own")
            stages = {"base": ("base", first), "agent-sft": (KIND, second)}
            self.runs.append(put_run(stages))


def asked_at(
    sizes: tuple[int, ...], home: Home, calls: list[str], ask: Callable[[], object]
) -> list[int]:
    """How often the store was asked in a home of each of these sizes."""
    found: list[int] = []
    for size in sizes:
        home.grow(size)
        calls.clear()
        ask()
        found.append(len(calls))
    return found


@pytest.mark.parametrize(
    "wanted", [digest("sft 1")[:8], digest("sft 1"), f"{KIND}/{digest('sft 1')[:12]}", "agent-sft"]
)
def test_a_name_is_resolved_with_as_few_reads_in_a_large_home(
    tmp_path: Path, calls: list[str], wanted: str
) -> None:
    few, many = asked_at(SIZES, Home(tmp_path), calls, lambda: locate_artifact(wanted, ""))
    assert few == many <= 5


def test_a_beginning_of_many_digests_is_refused_after_two(tmp_path: Path, calls: list[str]) -> None:
    home = Home(tmp_path)
    home.grow(20)
    beginnings = [digest(f"sft {number}")[0] for number in range(20)]
    common = max(beginnings, key=beginnings.count)
    calls.clear()
    with pytest.raises(InputError, match="several artifacts begin with"):
        find_artifact(artifact_store(), common)
    assert sum(path.endswith("manifest.json") for path in calls) == 2


def test_artifacts_of_a_run_reads_that_run_s(
    tmp_path: Path, calls: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    home = Home(tmp_path)
    home.grow(1)
    command = ["artifacts", "--run", home.runs[0].run, "--json"]
    few, many = asked_at(SIZES, home, calls, lambda: exit_code(command))
    assert few == many <= 6
    capsys.readouterr()
    exit_code(command)
    shown = json.loads(capsys.readouterr().out)
    assert {each["run"] for each in shown} == {"its-own"}
    assert {each["digest"] for each in shown} == {digest("base 0"), digest("sft 0")}


def test_artifacts_reads_each_manifest_once(tmp_path: Path, calls: list[str]) -> None:
    few, many = asked_at(SIZES, Home(tmp_path), calls, lambda: exit_code(["artifacts"]))
    assert many - few == 2 * (SIZES[1] - SIZES[0])


def test_lineage_reads_what_it_names(tmp_path: Path, calls: list[str]) -> None:
    few, many = asked_at(
        SIZES, Home(tmp_path), calls, lambda: lineage_of(artifact_store(), KIND, digest("sft 1"))
    )
    assert few == many


def test_gc_reads_two_files_of_a_run_and_what_it_would_delete(
    tmp_path: Path, calls: list[str]
) -> None:
    home = Home(tmp_path)
    few, many = asked_at(SIZES, home, calls, lambda: survey(artifact_store(), 1, []))
    files_of_a_run, manifests = 2, 2
    assert many - few == (files_of_a_run + manifests) * (SIZES[1] - SIZES[0])
    calls.clear()
    survey(artifact_store(), SIZES[1], [])
    assert not [path for path in calls if path.endswith("manifest.json")], "all are kept"


def test_gc_reads_manifests_once_though_it_looks_twice(tmp_path: Path, calls: list[str]) -> None:
    home = Home(tmp_path)
    home.grow(4)
    calls.clear()
    assert exit_code(["artifacts", "gc", "--keep-runs", "1", "--yes"]) == 0
    read = [path for path in calls if path.endswith("manifest.json")]
    assert len(read) == 2 * 3
    assert len(artifact_store().list()) == 2


def test_check_asks_no_more_of_a_store_with_many_artifacts(
    tmp_path: Path, calls: list[str]
) -> None:
    recipe = load_recipe("cpu-demo")
    plan = plan_post_train(recipe)
    few, many = asked_at(SIZES, Home(tmp_path), calls, lambda: stage_reasons(recipe, plan))
    assert few == many
