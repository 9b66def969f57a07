"""`distill-rounds` on a schedule: each trigger adds rounds, on problems and levels of their own."""

from __future__ import annotations

import hashlib
import json
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from flows.catalog import plan_of
from flows.checks.recipe_checks import check_recipe
from flows.load import load_recipe, validate_recipe
from flows.post_train import (
    Earlier,
    earlier_rounds,
    plan_distill_rounds,
    plan_post_train,
    written,
)
from flows.recipe import Recipe
from flows.running.new_run import NotDue, new_run
from flows.running.records import RunRecord, RunState, StageRecord, find_run
from flows.running.run_lock import working_on
from infra.errors import InputError
from infra.store.artifacts import ArtifactStore
from tasks.distill.spec import DistillSpec
from tasks.rl.spec import RlSpec

pytestmark = pytest.mark.unit

HARDER = {"distill": None, "curriculum_options": {"levels": ["easy", "medium"]}}
DISTILLS = ("agent-distill", "agent-distill-2", "agent-distill-3")
ROUND_1 = [{"distill": {"problems": 128}}, "sft", "rl"]
"""what the flow adds to the smoke recipe"""


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path))


def recipe(*changes: str) -> Recipe:
    return load_recipe("cpu-smoke", changes)


def with_rounds(*stages: Any) -> Recipe:
    """The agent's path goes on with these."""
    written = recipe().model_dump(mode="json")
    written["experts"]["agent"]["path"] += stages
    return validate_recipe(written, "here")


def triggered(of: Recipe, done: bool = True) -> RunRecord:
    """What a trigger of one round puts on record; with its stages done or about to begin."""
    record = begun(of)
    for stage in plan_of("distill-rounds", of, record.head().arguments):
        known = record.stage(stage.name)
        digest = known.digest if known else f"{stage.name} of {record.run}"
        state = "completed" if done else "running"
        record.put_stage(StageRecord(name=stage.name, kind=stage.kind, state=state, digest=digest))
    record.put_state(RunState(state="completed" if done else "failed"))
    return record


def begun(of: Recipe, expert: str = "agent") -> RunRecord:
    """What a trigger puts on record, before anything works on it."""
    return new_run(of, "distill-rounds", {"expert": expert, "rounds": 1}, in_process=False)


def planned(record: RunRecord) -> list[str]:
    head = record.head()
    return [s.name for s in plan_of(head.flow, record.recipe(), head.arguments)]


def test_each_trigger_goes_on_from_the_newest_round() -> None:
    first, second, third = (triggered(recipe()) for _ in range(3))
    for number, record in enumerate((first, second, third), start=1):
        assert planned(record)[-2] == f"agent-rl-{number + 1}"
    kept = second.stages()
    assert {n: s.digest for n, s in kept.items() if n in first.stages() and n != "evaluate"} == {
        n: s.digest for n, s in first.stages().items() if n != "evaluate"
    }
    assert third.stages()["agent-rl-3"].digest == kept["agent-rl-3"].digest
    assert written(third.head().arguments) == {"expert": "agent", "rounds": 1}


def test_a_round_that_is_not_done_is_no_round() -> None:
    """Two triggers at once plan one round, whose stages they share; a failed one is taken up."""
    going, beside = triggered(recipe(), done=False), triggered(recipe(), done=False)
    assert planned(going) == planned(beside)


@pytest.mark.parametrize(
    "change",
    [
        "seed=1",
        "experts.agent.path.rl.steps=3",
        "base.random.layers=3",
        "unified.path.distill.problems=9",
    ],
)
def test_other_settings_begin_a_series_of_their_own(change: str) -> None:
    triggered(recipe())
    assert earlier_rounds(recipe(change), "agent") == Earlier()


def test_settings_of_later_rounds_and_places_are_free() -> None:
    triggered(recipe())
    changed = recipe("resources.servers=1", "experts.general.path.rl.steps=9")
    assert earlier_rounds(changed, "agent").rounds == 1
    assert earlier_rounds(with_rounds(*ROUND_1, HARDER, "sft", "rl"), "agent").rounds == 1
    assert earlier_rounds(with_rounds(HARDER, "sft", "rl"), "agent").rounds == 0
    assert earlier_rounds(changed, "general").rounds == 0


def test_each_round_has_problems_that_none_had() -> None:
    stages = {s.name: s.spec for s in plan_distill_rounds(recipe(), "agent", 3)}
    distills = [stages[name] for name in DISTILLS]
    assert [s.start for s in distills if isinstance(s, DistillSpec)] == [0, 128, 256]
    rls = [stages[name] for name in ("agent-rl", "agent-rl-2", "agent-rl-3", "agent-rl-4")]
    # 2 steps, each asking twice at most for 4 x 1.5 problems
    assert [s.start for s in rls if isinstance(s, RlSpec)] == [0, 24, 48, 72]


def test_a_round_may_raise_the_level_and_the_last_one_said_stays() -> None:
    made = with_rounds(*ROUND_1, HARDER, "sft", "rl")
    check_recipe(made, plan_post_train(made))
    stages = {s.name: s.spec for s in plan_distill_rounds(made, "agent", 3)}

    def levels(name: str) -> object:
        (domain,) = stages[name].model_dump()["domains"]
        return domain["curriculum"]["options"].get("levels")

    assert [levels(name) for name in DISTILLS] == [None, *[["easy", "medium"]] * 2]
    assert [levels(f"agent-rl-{n}") for n in (2, 3, 4)] == [None, *[["easy", "medium"]] * 2]
    assert levels("evaluate") is None, "scores stay comparable"


def test_the_rounds_of_a_path_run_with_the_recipe() -> None:
    names = [s.name for s in plan_post_train(with_rounds(*ROUND_1)) if s.expert == "agent"]
    assert names == ["agent-sft", "agent-rl", "agent-distill", "agent-sft-2", "agent-rl-2"]
    in_path = {s.name: s.spec for s in plan_post_train(with_rounds(*ROUND_1))}
    added = {s.name: s.spec for s in plan_distill_rounds(recipe(), "agent", 1)}
    assert all(added[name] == in_path[name] for name in names)


def test_a_round_without_a_cold_start_of_its_own_is_refused() -> None:
    made = with_rounds({"distill": {}}, "rl")
    with pytest.raises(InputError, match=r"agent\.path\.2\.distill: what follows does not learn"):
        plan_post_train(made)


def test_a_recipe_says_how_added_rounds_get_harder() -> None:
    written = recipe().model_dump(mode="json")
    levels = [{"levels": ["easy", "medium"]}, {"levels": ["medium"]}]
    written["rounds"]["harder"] = {"agent": levels}
    stages = {
        s.name: s.spec for s in plan_distill_rounds(validate_recipe(written, "-"), "agent", 3)
    }

    def level(name: str) -> object:
        (domain,) = stages[name].model_dump()["domains"]
        return domain["curriculum"]["options"].get("levels")

    assert [level(n) for n in DISTILLS] == [["easy", "medium"], ["medium"], ["medium"]]
    assert level("agent-rl") is None
    assert level("agent-rl-3") == ["medium"]
    assert level("evaluate") is None


def test_a_harder_round_admits_its_own_problems_first() -> None:
    written = recipe().model_dump(mode="json")
    written["experts"]["agent"]["path"].insert(1, {"admit": {"problems": {"rl": 4, "distill": 4}}})
    hard = {"levels": ["medium"]}
    written["rounds"]["harder"] = {"agent": [{"levels": ["easy"]}, hard]}
    planned = plan_distill_rounds(validate_recipe(written, "-"), "agent", 2)
    names = [stage.name for stage in planned if stage.expert]
    assert names == [
        "agent-sft", "agent-admit", "agent-rl",
        "agent-admit-2", "agent-distill", "agent-sft-2", "agent-rl-2",
        "agent-admit-3", "agent-distill-2", "agent-sft-3", "agent-rl-3",
    ]  # fmt: skip
    drawn_from = {s.name: s.inputs.get("admitted_problems", "") for s in planned}
    assert [drawn_from[n] for n in ("agent-rl", "agent-distill", "agent-rl-2")] == [
        "agent-admit", "agent-admit-2", "agent-admit-2",
    ]  # fmt: skip
    assert drawn_from["agent-rl-3"] == drawn_from["agent-distill-2"] == "agent-admit-3"
    (domain,) = next(s for s in planned if s.name == "agent-admit-3").spec.sampled_domains
    assert domain.curriculum.options["levels"] == ["medium"]


@pytest.mark.parametrize(
    ("harder", "what"),
    [
        ({"agnet": []}, r"rounds\.harder\.agnet: no such expert.*'agent'"),
        ({"agent": [{"levels": ["heavy"]}]}, r"rounds\.harder\.agent\.0: .*`levels`.*'heavy'"),
    ],
)
def test_wrong_levels_of_rounds_are_named(harder: dict[str, Any], what: str) -> None:
    written = recipe().model_dump(mode="json")
    written["rounds"]["harder"] = harder
    with pytest.raises(InputError, match=what):
        _checked(written)


def _checked(written: Any) -> None:
    made = validate_recipe(written, "here")
    check_recipe(made, plan_post_train(made))


def with_scores(record: RunRecord, outcomes: dict[str, list[list[float]]]) -> None:
    """The run's evaluation, as an artifact in the store."""
    stage = record.stage("evaluate")
    assert stage is not None
    digest = hashlib.sha256(record.run.encode()).hexdigest()
    cells = [
        {"model": model, "domain": "agent", "kind": "score", "outcomes": of}
        for model, of in outcomes.items()
    ]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "scores.json").write_text(json.dumps({"cells": cells}))
        stored = ArtifactStore(record.store).commit(
            "evaluate", digest, 1, Path(folder),
            identity={}, inputs={}, code={}, metrics={}, seeds={}, mlflow_run_id="", seconds=0.0,
        )  # fmt: skip
    record.put_stage(stage.model_copy(update={"artifact": stored.url, "digest": digest}))


def test_a_trigger_is_skipped_while_the_last_one_runs() -> None:
    going = triggered(recipe(), done=False)
    with working_on(going.run), pytest.raises(NotDue, match=going.run) as why:
        begun(recipe())
    assert why.value.state == "skipped"
    with working_on(going.run):  # the rounds of others go on
        begun(recipe(), "general")
    assert planned(begun(recipe())) == planned(going)


def test_of_triggers_at_the_same_moment_one_begins() -> None:
    triggered(recipe())
    together = threading.Barrier(4)

    def trigger(_: int) -> str:
        together.wait(30)
        try:
            return begun(recipe()).run
        except NotDue as why:
            return why.state

    with ThreadPoolExecutor(4) as pool:
        told = sorted(pool.map(trigger, range(4)))
    assert told[1:] == ["skipped"] * 3
    record = find_run(told[0])
    record.put_state(RunState(state="failed"))  # it ended before it began
    assert planned(begun(recipe())) == planned(record)


def test_a_series_at_its_end_is_left_alone_until_the_recipe_says_more() -> None:
    first, second = triggered(recipe()), triggered(recipe())
    right, half = [[1.0, 1.0]] * 4, [[0.0, 1.0]] * 4
    with_scores(first, {"agent-rl": right, "agent": half})
    third = begun(recipe())
    assert planned(third)[-2] == "agent-rl-4"
    third.put_state(RunState(state="failed"))
    with_scores(second, {"agent-rl": right, "agent-rl-2": half, "agent": half})
    with pytest.raises(NotDue, match=r"none of the last 2 rounds was surely better") as why:
        begun(recipe())
    assert why.value.state == "over"
    more = begun(recipe("rounds.patience=3"))
    assert planned(more)[-2] == "agent-rl-4"


def test_wrong_options_of_a_stage_are_named() -> None:
    harder = {"rl": None, "curriculum_options": {"levels": ["heavy"]}}
    made = with_rounds(harder)
    with pytest.raises(
        InputError, match=r"agent\.path\.2\.curriculum_options: .*`levels`.*'heavy'"
    ):
        check_recipe(made, plan_post_train(made))
