"""`tributary check` says why a stage is not cached."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from flows.command.main import main
from flows.load import load_recipe
from flows.post_train import plan_post_train
from flows.reasons import made_by_other_code, planned_identities, stage_reasons
from flows.recipe import Recipe
from flows.running.chosen_stages import ChosenStages, narrowed
from flows.running.new_run import new_run
from flows.running.records import StageRecord, store_of
from infra.store.artifacts import ArtifactStore
from tasks.durable.stage_identity import StageIdentity

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("own_home")]

AFTER = {
    "unified-distill": ["input general: general-rl is new"],
    "unified-sft": ["input data: unified-distill is new"],
    "unified-rl": ["input model: unified-sft is new"],
}


def recipe(*changes: str) -> Recipe:
    return load_recipe("cpu-demo", [*changes])


def why(*changes: str) -> dict[str, list[str]]:
    loaded = recipe(*changes)
    return {k: v for k, v in stage_reasons(loaded, plan_post_train(loaded)).items() if v}


@cache
def identities(*changes: str) -> dict[str, StageIdentity]:
    return planned_identities(plan_post_train(recipe(*changes)))


def keep(found: dict[str, StageIdentity], folder: Path, *, but: str = "") -> None:
    """Artifacts of stages, as their jobs leave them."""
    store = ArtifactStore(store_of(recipe().storage), folder / "cache")
    for name, identity in found.items():
        made = folder / "made" / name
        made.mkdir(parents=True, exist_ok=True)
        (made / "file").write_text("x")
        if name != but and store.find(identity.kind, identity.digest) is None:
            store.commit(
                identity.kind, identity.digest, 1, made, identity=identity.content,
                inputs=identity.inputs, code=identity.code.model_dump(), metrics={}, seeds={},
                mlflow_run_id="", seconds=1.0,
            )  # fmt: skip


def ran(found: dict[str, StageIdentity], *changes: str) -> None:
    record = new_run(recipe(*changes), "post-train", {}, in_process=True)
    for name, identity in found.items():
        stage = StageRecord(
            name=name, kind=identity.kind, digest=identity.digest, state="completed"
        )
        record.put_stage(stage)


def test_what_was_never_run_and_what_is_cached(tmp_path: Path) -> None:
    assert why() == {name: ["never run before"] for name in identities()}
    keep(identities(), tmp_path)
    assert why() == {}


def test_what_another_recipe_made_is_not_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = identities()
    keep(found, tmp_path)
    ran(found)
    new = ["name=mine", "seed=7", "experts.general.path.rl.algorithm.temperature=0.7"]
    loaded = recipe(*new)
    said = stage_reasons(loaded, plan_post_train(loaded))
    assert {line for lines in said.values() for line in lines} == {"never run before"}
    with pytest.raises(SystemExit):
        main(["check", "cpu-demo", *(word for each in new for word in ("--set", each))])
    told = capsys.readouterr().out
    assert " -> " not in told
    caution = told.index("stage general-rl: algorithm.temperature: is 0.7")
    assert told.index("mine never ran in ") < caution < told.index("A resumed run ends")
    assert len(told.splitlines()) <= 40, "one screen"


def test_what_is_to_run_is_said_to_take_as_long_as_it_took_a_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(*words: str) -> str:
        with pytest.raises(SystemExit):
            main(["check", "cpu-demo", *words])
        return capsys.readouterr().out

    assert "its first run shows how long" in told()
    record = new_run(recipe(), "post-train", {}, in_process=True)
    steps = next(s for s in plan_post_train(recipe()) if s.name == "agent-rl").steps
    kinds = {"agent-rl": "rl", "agent-sft": "sft"}
    for name, state in (("agent-rl", "completed"), ("agent-sft", "cached")):
        record.put_stage(
            StageRecord(
                name=name, kind=kinds[name], state=state, seconds=90.0, total=steps, mine=True
            )
        )
    twice = ["--set", f"experts.agent.path.rl.steps={2 * steps}", "--until", "agent-rl"]
    said = told(*twice)
    assert "3 of 3 stages are to run; at the pace of earlier runs 3 min, one after" in said
    assert "evaluate" not in said, "it ends where it is told to"
    by_name = {stage["name"]: stage for stage in json.loads(told(*twice, "--json"))["stages"]}
    assert by_name["agent-rl"]["seconds"] == 180.0
    assert by_name["agent-sft"]["seconds"] is None, "what was cached took no time"


def test_a_setting_is_named_as_it_was_and_is(tmp_path: Path) -> None:
    keep(identities(), tmp_path)
    ran(identities())
    said = why("experts.general.path.rl.optimizer.lr=1e-4")
    assert said.pop("evaluate") == [f"input {m}: {s} is new" for m, s in (
        ("general", "general-rl"), ("unified-sft", "unified-sft"), ("unified", "unified-rl"),
    )]  # fmt: skip
    assert said == {"general-rl": ["rl.optimizer.lr: 2e-4 -> 1e-4"], **AFTER}


def test_a_part_of_a_list_is_called_by_its_name(tmp_path: Path) -> None:
    keep(identities(), tmp_path)
    ran(identities())
    said = why("experts.general.domain.rewards.1.weight=0.3")
    assert said["general-rl"] == ["domains.general.rewards.repetition.weight: 0.2 -> 0.3"]


def test_files_and_packages_are_named(tmp_path: Path) -> None:
    found = identities()
    code = found["general-rl"].code
    files = {**code.files, "rewards/text.py": "0" * 64, "rewards/gone.py": "1" * 64}
    before = code.model_copy(
        update={
            "hash": "2" * 64,
            "files": files,
            "hooks": {"mine.py": "3"},
            "installed": {"a": "1"},
        }
    )
    old = StageIdentity("rl", found["general-rl"].content, found["general-rl"].inputs, before)
    keep(found, tmp_path, but="general-rl")
    keep({"old": old}, tmp_path)
    ran({"general-rl": old})
    assert why()["general-rl"] == [
        "rewards/gone.py is no longer used", "rewards/text.py changed",
        "hook mine.py is no longer used", "installed a: 1 -> not used",
    ]  # fmt: skip


def of_older_code(hooks: dict[str, str] | None = None) -> dict[str, StageIdentity]:
    """What the recipe made with an older version of Tributary, or of a user's hooks."""

    def older(_: object, identity: StageIdentity) -> StageIdentity:
        files = {**identity.code.files, "infra/errors.py": "0" * 64}
        changed = {"hash": ("3" if hooks else "2") * 64, "files": files, "hooks": hooks or {}}
        return replace(identity, code=identity.code.model_copy(update=changed))

    return planned_identities(plan_post_train(recipe()), taken_as=older)


def test_what_older_code_made_is_taken_as_it_is_where_a_run_accepts_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = of_older_code()
    keep(found, tmp_path)
    ran(found)
    loaded = recipe()
    plan = plan_post_train(loaded)
    assert made_by_other_code(loaded, plan) == list(found)
    with pytest.raises(SystemExit):
        main(["check", "cpu-demo"])
    told = " ".join(capsys.readouterr().out.split())
    assert f"all else being the same: {', '.join(found)}; `tributary run cpu-demo --acc" in told
    accepting = narrowed(plan, ChosenStages(accept_code=True))
    assert not any(stage_reasons(loaded, accepting).values())
    again = narrowed(plan, ChosenStages(accept_code=True, force_stages=["general-rl"]))
    assert [s.name for s in again if not s.accepts_code] == ["general-rl"]


def test_other_settings_inputs_or_hooks_are_not_taken_for_other_code(tmp_path: Path) -> None:
    keep(of_older_code(), tmp_path)
    ran(of_older_code())
    loaded = recipe("experts.general.path.rl.optimizer.lr=1e-4")
    accepting = narrowed(plan_post_train(loaded), ChosenStages(accept_code=True))
    left = {name: lines for name, lines in stage_reasons(loaded, accepting).items() if lines}
    assert left["general-rl"][0] == "rl.optimizer.lr: 2e-4 -> 1e-4"
    assert set(left) == {"general-rl", "evaluate", *AFTER}
    hooked = of_older_code({"mine.py": "3"})
    keep(hooked, tmp_path)
    ran(hooked)
    assert made_by_other_code(recipe(), plan_post_train(recipe())) == []


def test_what_was_begun_or_deleted_says_so(tmp_path: Path) -> None:
    found = identities()
    keep(found, tmp_path, but="general-rl")
    ran(found)
    assert why()["general-rl"] == ["its artifact was deleted"]
    record = new_run(recipe(), "post-train", {}, in_process=True)
    digest = found["general-rl"].digest
    record.put_stage(StageRecord(name="general-rl", kind="rl", digest=digest, state="stopped"))
    assert why()["general-rl"] == ["started but not finished"]


def test_check_shows_the_first_reason_and_all_of_them_below(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(identities(), tmp_path)
    ran(identities())
    changes = ["experts.general.path.rl.optimizer.lr=1e-4", "experts.general.path.rl.steps=25"]
    with pytest.raises(SystemExit) as ended:
        main(["check", "cpu-demo", "--full", "--set", changes[0], "--set", changes[1]])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert "general-rl: rl.steps: 24 -> 25" in said
    assert "general-rl: rl.optimizer.lr: 2e-4 -> 1e-4" in said
    shutil.rmtree(tmp_path / "made")
