"""Partial rollouts take turns with training, and are refused where none could be."""

from __future__ import annotations

import pytest

from flows.checks.recipe_checks import check_recipe
from flows.checks.servers import inexact
from flows.load import load_recipe
from flows.post_train import plan_post_train
from infra.errors import InputError
from tasks.rl.spec import RlSpec
from tests.parts.recipe_parts import the_last
from tests.parts.stage_parts import STEADY

pytestmark = pytest.mark.unit

PARTIAL = [
    "unified.path.rl.max_staleness=1",
    "unified.path.rl.partial_rollout_tokens=8",
    "resources.default.share=true",
]


def test_resumes_are_exact_and_devices_may_be_shared() -> None:
    recipe = load_recipe("cpu-smoke", PARTIAL)
    plan = plan_post_train(recipe)
    assert list(inexact(recipe, plan)) == []
    check_recipe(recipe, plan)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ("max_staleness=0", "has tokens of older weights, and max_staleness 0 allows none"),
        ("oversample=1", "with oversample 1 a step begins no more than it needs"),
        ("partial_rollout_tokens=100000", "is no less than a rollout has, at most"),
        ("on_stale=requeue", "on_stale: no rollout is ever too old where"),
    ],
)
def test_what_makes_no_rollout_partial_is_refused(changed: str, said: str) -> None:
    recipe = load_recipe("cpu-smoke", the_last(*PARTIAL, f"unified.path.rl.{changed}"))
    with pytest.raises(InputError, match=said):
        check_recipe(recipe, plan_post_train(recipe))


def test_programs_with_a_time_limit_and_servers_of_mcp_have_no_partial_rollouts() -> None:
    settings = {"steps": 2, "optimizer": {"lr": 1e-3}, "max_staleness": 1}
    settings["partial_rollout_tokens"] = 8
    driver = {"name": "harness", "options": {"command": ["python", "agent.py"]}}
    made = RlSpec.model_validate({"settings": settings, "domains": [{**STEADY, "driver": driver}]})
    (said,) = made.problems()
    assert "the driver harness (domain general) have a time limit" in said
    problems = {**STEADY["curriculum"], "mcp": {"command": ["python", "shop.py"]}}
    tools = {**STEADY, "curriculum": problems, "max_turns": 3}
    made = RlSpec.model_validate({"settings": settings, "domains": [tools]})
    (said,) = made.problems()
    assert "servers of `mcp` (domain general) are kept from rollouts that wait" in said
