"""A kind of stage that is the user's own: planned, checked, and run by a real job."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file

from flows.checks.recipe_checks import cautions, check_recipe
from flows.load import load_recipe, validate_recipe
from flows.path import PathStage
from flows.plan import PlannedStage
from flows.post_train import plan_post_train
from flows.reasons import planned_identities
from flows.recipe import Recipe
from infra.errors import InputError
from infra.store.artifacts import ArtifactRecord, ArtifactStore
from infra.store.store import Store
from infra.user_files import install_hooks, read_hooks
from tasks.base.spec import BaseSpec
from tasks.durable.attempts import RunPlace, StageWork, run_stage
from tasks.durable.launch import LocalLauncher
from tasks.durable.stage_identity import stage_identity
from tasks.stage import Resources, StageResources, StageSpec
from tests.integration.infra.test_attempts import Seen

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("own_home")]

EXAMPLE = Path(__file__).parents[3] / "examples/own_stage"
KIND = "interpolate:Interpolate"
NAME = "reasoning-interpolate"


def recipe(*changes: str) -> Recipe:
    return load_recipe(str(EXAMPLE / "recipe.yaml"), changes)


def plan(made: Recipe) -> dict[str, PlannedStage]:
    return {stage.name: stage for stage in plan_post_train(made)}


def test_it_stands_in_the_plan_the_scores_and_the_record_like_one_of_ours() -> None:
    made = recipe()
    stages = plan(made)
    check_recipe(made, list(stages.values()))
    assert list(stages) == ["base", "reasoning-sft", NAME, "evaluate"]
    assert stages[NAME].inputs == {"model": "reasoning-sft", "base": "base"}
    assert (stages[NAME].kind, stages[NAME].scored_as) == ("interpolate", "reasoning")
    assert stages["evaluate"].inputs["reasoning"] == NAME
    assert validate_recipe(made.model_dump(mode="json"), "record") == made


def test_a_caution_of_its_own_is_shown() -> None:
    made = recipe("experts.reasoning.path.1={'interpolate:Interpolate': {share: 0.95}}")
    assert any("leaves almost nothing" in line for line in cautions(made, plan_post_train(made)))


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({KIND: {"share": 2}}, rf"path\.1\.{KIND}\.share: input should be less than 1"),
        ({KIND: {"shaer": 0.5}}, "shaer: unknown field; did you mean `share`"),
        ({KIND: 3}, "its settings are a mapping, not 3"),
        ({KIND: {"share": 0.5}, "extra": 1}, f"extra: unknown field beside `{KIND}`"),
        ({"interpolate:Interpol": {}}, "Did you mean 'Interpolate'"),
        ({"interpolate:InterpolateSettings": {}}, "is no subclass of tasks.stage.StageSpec"),
        ({"missing_file:Stage": {}}, r"path\.1: stage .*list its file"),
    ],
)
def test_what_is_wrong_with_it_is_said(entry: dict[str, object], said: str) -> None:
    data = recipe().model_dump(mode="json")
    data["experts"]["reasoning"]["path"][1] = entry
    with pytest.raises(InputError, match=said):
        plan_post_train(validate_recipe(data, "here"))


def test_it_cannot_stand_where_its_place_has_nothing_for_it() -> None:
    made = recipe()
    path: list[PathStage] = made.experts["reasoning"].path[1:]
    alone = made.experts["reasoning"].model_copy(update={"path": path})
    with pytest.raises(InputError, match=rf"path\.0\.{KIND}: nothing is trained before it"):
        plan_post_train(made.model_copy(update={"experts": {"reasoning": alone}}))


def test_a_file_that_is_no_kind_says_what_it_lacks(tmp_path: Path) -> None:
    (tmp_path / "lacking.py").write_text(
        "from tasks.stage import StageSpec\n\n\nclass Stage(StageSpec):\n    kind = 'rl'\n"
    )
    data = recipe().model_dump(mode="json") | {"hooks": [str(tmp_path / "lacking.py")]}
    data["experts"]["reasoning"]["path"][1] = {"lacking:Stage": {}}
    with pytest.raises(InputError, match="'rl' is one of Tributary's"):
        plan_post_train(validate_recipe(data, "here"))


def test_an_edit_of_its_file_runs_it_and_what_follows_again(tmp_path: Path) -> None:
    for file in EXAMPLE.iterdir():
        if file.is_file():
            shutil.copy(file, tmp_path / file.name)

    def digests() -> dict[str, str]:
        made = load_recipe(str(tmp_path / "recipe.yaml"))
        planned = plan_post_train(made)
        user = install_hooks(read_hooks(made.hooks, made.data))
        return {n: i.digest for n, i in planned_identities(planned, user).items()}

    before = digests()
    with (tmp_path / "interpolate.py").open("a") as file:
        file.write("\nEDITED = 1\n")
    after = digests()
    assert {name for name in before if before[name] != after[name]} == {NAME, "evaluate"}


def test_a_real_job_runs_it(tmp_path: Path) -> None:
    made = recipe()
    stages = plan(made)
    files = read_hooks(made.hooks, made.data)
    user = install_hooks(files)
    store = Store(f"file://{tmp_path}/store")
    artifacts = ArtifactStore(store, tmp_path / "cache")
    place = RunPlace(
        store=store, artifacts=artifacts, launcher=LocalLauncher(), home_id="here", run="run",
        pool=Resources(), hooks=files,
    )  # fmt: skip

    def done(name: str, spec: StageSpec, **inputs: ArtifactRecord) -> ArtifactRecord:
        digest = stage_identity(spec, {role: r.digest for role, r in inputs.items()}, user).digest
        work = StageWork(name, spec, inputs, StageResources(), digest)
        return run_stage(work, place, Seen())[0]

    base = stages["base"].spec
    assert isinstance(base, BaseSpec)
    first = done("base", base)
    other = done("other", base.model_copy(update={"seed": 7}))
    mixed = done(NAME, stages[NAME].spec, model=other, base=first)
    weights = [
        load_file(artifacts.local(record) / "model.safetensors") for record in (first, other, mixed)
    ]
    name = next(iter(weights[0]))
    far, near, between = (each[name].float() for each in weights)
    assert between.allclose(0.25 * far + 0.75 * near, atol=1e-6)
    assert mixed.kind == "interpolate"
    assert mixed.metrics["largest_change"] > 0
