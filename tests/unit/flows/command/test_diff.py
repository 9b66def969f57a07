"""`tributary diff`: which settings differ, which stages run again, and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flows.command.main import main
from flows.diff import MISSING, Diff, Difference, compare_sides, differences, side_of
from flows.load import load_recipe
from flows.post_train import plan_post_train
from flows.reasons import planned_identities
from flows.running.new_run import new_run
from flows.running.records import RunRecord, StageRecord, store_of
from infra.store.artifacts import ArtifactStore

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("own_home")]

STEPS = "experts.agent.path.rl.steps=4"


def diff(a: str, b: str, *changes: str) -> Diff:
    return compare_sides(side_of(a, [], "A"), side_of(b, changes, "B"))


def states(found: Diff) -> dict[str, str]:
    return {fate.stage: fate.state for fate in found.stages}


def reasons(found: Diff) -> dict[str, list[tuple[str, str]]]:
    return {f.stage: [(r.part, r.text) for r in f.reasons] for f in found.stages if f.reasons}


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main([*arguments])
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_a_recipe_is_the_same_as_itself() -> None:
    found = diff("cpu-demo", "cpu-demo")
    assert found.settings == []
    assert set(states(found).values()) == {"cached"}


def test_a_setting_runs_its_stage_and_those_made_from_it() -> None:
    found = diff("cpu-demo", "cpu-demo", STEPS)
    assert [(s.path, s.values) for s in found.settings] == [
        ("experts.agent.path.1.rl.steps", {"a": 24, "b": 4})
    ]
    again = reasons(found)
    assert list(again) == ["agent-rl", "unified-distill", "unified-sft", "unified-rl", "evaluate"]
    assert again["agent-rl"] == [("setting", "rl.steps: 24 -> 4")]
    assert again["unified-sft"] == [("input", "data: unified-distill runs again")]


def test_neutral_settings_differ_and_nothing_runs() -> None:
    found = diff("cpu-demo", "cpu-demo", "experts.agent.path.rl.checkpoint_every=3")
    assert len(found.settings) == 1
    assert set(states(found).values()) == {"cached"}


def test_stages_that_only_one_side_has_are_told_apart() -> None:
    found = diff("cpu-demo", "cpu-demo", "experts.agent.path.1={rollout: {}}")
    assert states(found)["agent-rl"] == "gone"
    assert states(found)["agent-rollout"] == "new"
    paths = {setting.path: setting.values for setting in found.settings}
    assert "b" not in paths["experts.agent.path.1.rl"]
    assert "a" not in paths["experts.agent.path.1.rollout"]


def test_files_of_code_and_data_are_named(tmp_path: Path) -> None:
    """A recipe's own side is of today, so the older state comes from a run."""
    (tmp_path / "chats.jsonl").write_text('{"messages": []}\n')
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(
        "name: mine\nbase: {folder: model}\nexperts:\n  chats:\n    path: [{sft: {steps: 1,"
        " optimizer: {lr: 1e-5}, data: {files: [chats.jsonl]}}}]\n"
    )
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text('{"model_type": "qwen3"}')
    run = recorded(tmp_path, str(recipe))
    (tmp_path / "chats.jsonl").write_text('{"messages": [1]}\n')
    (tmp_path / "model/config.json").write_text('{"model_type": "qwen2"}')
    found = reasons(diff(run.run, str(recipe)))
    assert ("data", "base.folder: config.json changed") in found["base"]
    assert ("code", "engines/families/qwen3.py is no longer used") in found["base"]
    assert found["chats-sft"] == [
        ("data", "data chats.jsonl changed"), ("input", "model: base runs again"),
    ]  # fmt: skip


def test_a_run_that_did_not_finish_a_stage_has_not_made_it(tmp_path: Path) -> None:
    run = recorded(tmp_path, "cpu-demo", but="agent-rl")
    found = diff(run.run, "cpu-demo")
    assert reasons(found)["agent-rl"] == [("input", f"{run.run} did not finish it: stopped")]
    assert states(found)["agent-sft"] == "cached"


def test_a_run_with_changes_is_its_recipe_as_it_would_run_now(tmp_path: Path) -> None:
    run = recorded(tmp_path, "cpu-demo")
    found = diff(run.run, run.run, "experts.agent.path.1.rl.steps=4")
    assert reasons(found)["agent-rl"] == [("setting", "rl.steps: 24 -> 4")]


def test_what_is_neither_recipe_nor_run_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "diff", "cpu-demo", "cpu-smok")
    assert "B `cpu-smok`: no such file" in said
    assert "did you mean `cpu-smoke`?" in said


def test_it_prints_lines_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    for options in ([], ["--json"]):
        with pytest.raises(SystemExit) as ended:
            main(["diff", "cpu-demo", "--set", STEPS, *options])
        assert ended.value.code == 0
    text, _, printed = capsys.readouterr().out.partition("{")
    assert "experts.agent.path.1.rl.steps: 24 -> 4" in text
    assert "agent-rl         runs again  setting: rl.steps: 24 -> 4\n" in text
    found: dict[str, Any] = json.loads("{" + printed)
    assert found["settings"] == [
        {"path": "experts.agent.path.1.rl.steps", "values": {"a": 24, "b": 4}}
    ]


def test_lists_of_stages_are_compared_one_by_one_and_others_as_a_whole() -> None:
    before, after = [{"sft": 1}], [{"sft": 2}, {"rl": 3}]
    assert list(differences(before, after, "path")) == [
        Difference("path.0.sft", 1, 2), Difference("path.1", MISSING, {"rl": 3}),
    ]  # fmt: skip
    assert list(differences(["a"], ["a", "b"], "levels")) == [
        Difference("levels", ["a"], ["a", "b"])
    ]


def recorded(folder: Path, name: str, *, but: str = "") -> RunRecord:
    """A run of a recipe with artifacts, as its jobs leave them; `but` is the stage that stopped."""
    recipe = load_recipe(name)
    record = new_run(recipe, "post-train", {}, in_process=True)
    store = ArtifactStore(store_of(recipe.storage), folder / "cache")
    made = folder / "made"
    made.mkdir()
    for stage, identity in planned_identities(plan_post_train(recipe)).items():
        state = "completed" if stage != but else "stopped"
        record.put_stage(
            StageRecord(name=stage, kind=identity.kind, digest=identity.digest, state=state)
        )
        if stage != but and store.find(identity.kind, identity.digest) is None:
            store.commit(
                identity.kind, identity.digest, 1, made, identity=identity.content,
                inputs=identity.inputs, code=identity.code.model_dump(), metrics={}, seeds={},
                mlflow_run_id="", seconds=1.0,
            )  # fmt: skip
    return record
