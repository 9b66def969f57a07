"""The kill matrix's own parts: what counts as a difference, and which cells there are."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
from pathlib import Path
from typing import Any

import pytest

from flows.catalog import plan_of
from flows.checks.recipe_checks import check_recipe
from flows.load import load_recipe
from flows.post_train import plan_post_train
from infra.home import SOURCE_ROOT
from infra.timeline import TRACE_FILE
from tests.programs.chaos.cells import matrix
from tests.programs.chaos.compare import broken_promises, differences, made_from, unlike
from tests.programs.chaos.ground import STALL_S
from tests.programs.chaos.inject.sitecustomize import MOMENTS
from tests.programs.chaos.scenarios import SCENARIOS

pytestmark = pytest.mark.unit


def _write(store: Path, kind: str, inputs: dict[str, str], **metrics: float) -> Path:
    """An artifact of a result and a trace, whose digest is its kind; -> the result's file."""
    folder = store / "artifacts" / kind / kind
    content = {"model": f"weights of {kind}", TRACE_FILE: f"times of {store.name}"}
    for name, text in content.items():
        (folder / "a1" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "a1" / name).write_text(text)
    files = [
        {"path": name, "size": len(text), "sha256": hashlib.sha256(text.encode()).hexdigest()}
        for name, text in content.items()
    ]
    manifest: dict[str, Any] = {
        "kind": kind,
        "digest": kind,
        "attempt": 1,
        "identity": {},
        "inputs": inputs,
        "seeds": {},
        "metrics": metrics,
        "files": files,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder / "a1" / "model"


def _run(store: Path, **metrics: float) -> Path:
    """Three stages in a row; -> the last one's file."""
    _write(store, "sft", {})
    _write(store, "rl", {"model": "sft"})
    return _write(store, "evaluate", {"model": "rl"}, **metrics)


def test_runs_that_differ_only_in_times_are_equal(tmp_path: Path) -> None:
    _run(tmp_path / "one", score=0.5, work_seconds=1.0, tokens_per_s=9.0)
    _run(tmp_path / "other", score=0.5, work_seconds=2.0, tokens_per_s=8.0)
    assert differences(tmp_path / "one", tmp_path / "other") == ""


def test_every_artifact_is_compared(tmp_path: Path) -> None:
    _run(tmp_path / "one", score=0.5)
    file = _run(tmp_path / "other", score=0.25)
    _write(tmp_path / "other", "distill", {})
    (tmp_path / "other" / "artifacts" / "sft" / "sft" / "manifest.json").unlink()
    file.write_bytes(b"damaged")
    assert differences(tmp_path / "one", tmp_path / "other").split(", ") == [
        "sft/sft is missing",
        "distill/distill is strange",
        "evaluate/evaluate: score differs",
        "evaluate/evaluate: model is not what its manifest says",
    ]


def test_scores_that_a_lost_server_may_cut_short_are_left_out_where_a_cell_says_so(
    tmp_path: Path,
) -> None:
    scored = SCENARIOS["scored"]
    _run(tmp_path / "one", score=0.5)
    _run(tmp_path / "other", score=0.5)
    for name, outcome in (("one", 0.5), ("other", 0.25)):
        _write(tmp_path / name, "rl", {"model": "sft"}, eval_outcome_last=outcome, steps=5.0)
    one, other = tmp_path / "one", tmp_path / "other"
    assert differences(one, other) == "rl/rl: eval_outcome_last differs"
    assert unlike(SCENARIOS["expert"], one, other) == "rl/rl: eval_outcome_last differs"
    assert unlike(scored, one, other) == ""
    _write(other, "rl", {"model": "sft"}, eval_outcome_last=0.25, steps=4.0)
    assert unlike(scored, one, other) == "rl/rl: steps differs"


def _takes(store: Path, *takes: tuple[int, int, list[int]]) -> None:
    """Of the stage `rl`, as step, version and tickets."""
    lines = [json.dumps(dict(zip(("step", "version", "tickets"), t, strict=True))) for t in takes]
    (store / "artifacts/rl/rl/a1/takes.jsonl").write_text("\n".join(lines))


def test_a_run_with_other_bits_keeps_its_promises_where_each_ticket_is_trained_once(
    tmp_path: Path,
) -> None:
    for name in ("one", "other"):
        _run(tmp_path / name, score=0.5 if name == "one" else 0.25)
    _takes(tmp_path / "one", (1, 0, [0, 1]), (2, 1, [2, 3]), (3, 2, [4, 6]))
    _takes(tmp_path / "other", (1, 0, [1, 3]), (2, 1, [0, 4]), (3, 1, [2]))
    assert broken_promises(tmp_path / "one", tmp_path / "other") == ""
    _takes(tmp_path / "other", (1, 0, [1, 3]), (3, 2, [3, 4]))
    assert broken_promises(tmp_path / "one", tmp_path / "other").split(", rl/rl: ") == [
        "rl/rl: the steps are [1, 3], not 1 to 3",
        "the versions are [0, 2]",
        "tickets [3] were trained on twice",
    ]


def test_what_was_made_from_the_stage_that_is_hit_is_made_again(tmp_path: Path) -> None:
    _run(tmp_path)
    assert made_from(tmp_path, "rl") == {"rl/rl", "evaluate/evaluate"}


def test_the_matrix_has_its_hundred_cells_in_an_order_of_the_seeds() -> None:
    cells = matrix(0)
    names = {cell.name for cell in cells}
    assert len(names) == len(cells) >= 100
    assert {cell.how.scenario for cell in cells} == set(SCENARIOS)
    assert names == {cell.name for cell in matrix(1)}


@pytest.mark.parametrize("moment", MOMENTS)
def test_what_a_moment_waits_for_exists_and_takes_what_its_test_takes(moment: str) -> None:
    module, path, is_meant = MOMENTS[moment]
    function: Any = importlib.import_module(module)
    for name in path.split("."):
        function = getattr(function, name)
    given = inspect.signature(function).parameters.values()
    needed = [p.name for p in given if p.default is p.empty]
    for names in (needed, [p.name for p in given if p.kind is p.POSITIONAL_OR_KEYWORD]):
        inspect.signature(is_meant).bind(*names)


@pytest.mark.parametrize("name", SCENARIOS)
def test_each_run_can_be_planned(name: str) -> None:
    scenario = SCENARIOS[name]
    recipe = load_recipe(str(scenario.recipe), list(scenario.changes))
    flow, arguments = scenario.of_run(next(iter(recipe.experts)))
    made = {stage.spec.kind for stage in plan_of(flow, recipe, arguments)}
    assert made.issuperset({"base", "sft", "rl"})
    assert scenario.begins_as in ("", *SCENARIOS)
    assert made.issuperset(scenario.shared)


def test_the_recipe_can_run_where_a_hung_stage_is_soon_found() -> None:
    stall = f"resources.default.stall_seconds={STALL_S}"
    recipe = load_recipe(str(SOURCE_ROOT / "tests/programs/chaos/recipe.yaml"), [stall])
    check_recipe(recipe, plan_post_train(recipe))
