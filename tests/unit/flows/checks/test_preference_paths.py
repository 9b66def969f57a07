"""Paths in which preferences are learned from answers that the path itself sampled."""

from __future__ import annotations

import pytest

from flows.load import validate_recipe
from flows.post_train import plan_post_train
from infra.errors import InputError
from tests.unit.flows.checks.test_paths import RL, SFT, plan, written

pytestmark = pytest.mark.unit

LEARNED = {"steps": 2, "optimizer": {"lr": 2e-4}}
SEVERAL = {"distill": {"samples": 2, "min_outcome": 0.5}}


def test_preferences_are_learned_from_the_models_own_answers() -> None:
    found = plan({"sft": SFT}, SEVERAL, {"reward": LEARNED}, {"preference": LEARNED}, {"rl": RL})
    sampled = {"model": "agent-sft", "data": "agent-distill"}
    assert dict(found["agent-reward"].inputs) == sampled
    assert dict(found["agent-preference"].inputs) == sampled
    assert found["agent-rl"].inputs["model"] == "agent-preference"
    found = plan({"sft": SFT}, SEVERAL, {"reward": LEARNED}, {"rl": RL})
    assert found["agent-rl"].inputs["model"] == "agent-sft"
    found = plan({"sft": SFT}, SEVERAL, {"reward": LEARNED}, "sft")
    assert dict(found["agent-sft-2"].inputs) == {"model": "base", "data": "agent-distill"}


@pytest.mark.parametrize("kind", ["preference", "reward"])
def test_preferences_without_files_need_answers_before_them(kind: str) -> None:
    with pytest.raises(InputError, match=r"path\.1\.\w+: data: is missing; name your own files"):
        plan({"sft": SFT}, {kind: LEARNED})
    for few in ({"samples": 4}, {"min_outcome": 0}):
        with pytest.raises(InputError, match=r"keeps one answer to a problem, or right ones only"):
            plan({"distill": few}, {kind: LEARNED})
    tree = written([{"sft": SFT}], unified={"path": ["distill", {kind: LEARNED}]})
    with pytest.raises(InputError, match="are the experts', and preferences are learned from"):
        plan_post_train(validate_recipe(tree, "here"))
