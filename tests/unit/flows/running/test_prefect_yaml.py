"""The deployments: Prefect ignores keys that it does not know and errors until a run starts."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.catalog import FLOWS, plan_of
from flows.load import load_recipe
from flows.page.prefect_app import know_formats
from infra.stack import WORK_POOL

pytestmark = pytest.mark.unit

FILE = Path(__file__).parents[4] / "prefect.yaml"
CONTENT: dict[str, Any] = yaml.safe_load(FILE.read_text())
ARGUMENTS: dict[str, dict[str, Any]] = {
    "post-train": {},
    "expert": {"expert": "agent"},
    "distill-rounds": {"expert": "agent", "rounds": 2},
    "evaluate": {"models": "one=/models/one"},
    "replay": {"stage": "agent-rl"},
}


def _flow(deployment: dict[str, Any]) -> Any:
    from prefect.flows import load_flow_from_entrypoint

    # The default falls back to reading the source, which hides import errors.
    return load_flow_from_entrypoint(deployment["entrypoint"], use_placeholder_flow=False)


def test_every_flow_has_a_deployment_of_its_name() -> None:
    assert tuple(d["name"] for d in CONTENT["deployments"]) == FLOWS


@pytest.mark.parametrize("deployment", CONTENT["deployments"], ids=lambda d: d["name"])
def test_a_deployment_has_only_keys_that_prefect_knows(deployment: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from prefect.cli.deploy._models import DeploymentConfig
    assert set(deployment) <= set(DeploymentConfig.model_fields)
    assert deployment["work_pool"]["name"] == WORK_POOL


@pytest.mark.parametrize("deployment", CONTENT["deployments"], ids=lambda d: d["name"])
def test_a_deployment_takes_a_recipe_by_name_or_whole_and_refuses_a_typo(
    deployment: dict[str, Any],
) -> None:
    from prefect.utilities.callables import parameter_schema
    from prefect.utilities.schema_tools.validation import validate

    know_formats()
    flow = _flow(deployment)
    assert flow.name == deployment["name"]
    schema = parameter_schema(flow).model_dump(exclude_none=True)

    def wrong(**given: Any) -> list[str]:
        """Names of the fields that the page marks."""
        found = validate({**ARGUMENTS[flow.name], **given}, schema)
        return sorted(str(error.path[0] if error.path else error.message) for error in found)

    tree = load_recipe("cpu-demo").model_dump(mode="json")
    flow.validate_parameters({"recipe": "cpu-demo", **ARGUMENTS[flow.name]})
    assert wrong(recipe="cpu-demo", seed="1", overrides="a.b=1\n# c", name="mine") == []
    assert wrong(recipe=tree) == wrong(recipe=yaml.safe_dump(tree)) == []
    assert wrong(recipe="cpu-dmo", seed="-1", name="My run") == ["name", "recipe", "seed"]
    assert wrong() == ["'recipe' is a required property"]


def test_the_weekly_schedule_is_off() -> None:
    rounds = next(d for d in CONTENT["deployments"] if d["name"] == "distill-rounds")
    assert [s["active"] for s in rounds["schedules"]] == [False]


def test_the_weekly_schedule_can_be_switched_on_as_it_is() -> None:
    rounds = next(d for d in CONTENT["deployments"] if d["name"] == "distill-rounds")
    given = dict(rounds["schedules"][0]["parameters"])
    recipe = load_recipe(given.pop("recipe"))
    assert plan_of("distill-rounds", recipe, given)
