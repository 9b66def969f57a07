"""The commands of a report that make its run again."""

from __future__ import annotations

from typing import Any

import pytest

from flows.load import load_recipe
from flows.reports.page import origin_of
from flows.running.records import RunHead

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("flow", "arguments", "command"),
    [
        ("post-train", {}, "tributary run cpu-smoke.yaml"),
        (
            "expert",
            {"name": "agent", "stages": {"until_stage": "agent-sft", "force_stages": ["base"]}},
            "tributary run cpu-smoke.yaml --expert agent --until agent-sft --force base",
        ),
        (
            "distill-rounds",
            {"expert": "agent", "rounds": 1, "after": 2},
            "tributary rounds cpu-smoke.yaml --expert agent --rounds 3",
        ),
        ("replay", {"stage": "agent-rl"}, "tributary replay agent-rl --run r"),
    ],
)
def test_a_run_is_made_again_by_the_command_that_did_its_stages(
    flow: str, arguments: dict[str, Any], command: str
) -> None:
    recipe = load_recipe("cpu-smoke")
    head = RunHead(run="r", flow=flow, arguments=arguments, recipe={}, created=0.0)
    assert command in origin_of(head, recipe, []).commands
