"""Turns: as many as demonstrations take, and rewards of them only where they count."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.checks.recipe_checks import cautions, check_recipe
from flows.load import load_recipe
from flows.post_train import plan_post_train
from flows.recipe import Recipe
from infra.errors import InputError
from tests.parts.recipe_parts import try_here

pytestmark = pytest.mark.unit

REWARD = """
from engines.types import Transcript, Verdict


async def by_turn(transcript: Transcript) -> Verdict:
    told = [m for m in transcript.messages if m.role == "assistant"]
    if not transcript.answer:
        return Verdict(0.0)
    return Verdict(1.0, turns=[1.0, *(0.0 for _ in told[1:])])
"""


def _check(recipe: Recipe) -> list[str]:
    plan = plan_post_train(recipe)
    check_recipe(recipe, plan)
    return [line for line in cautions(recipe, plan) if "turn" in line]


def test_fewer_turns_than_every_demonstration_takes_are_refused() -> None:
    said = (
        r"experts\.agent\.domain\.max_turns: is 1, and each of 8 demonstrations of agent takes 2"
        r" or more turns: .* an outcome of 0; set it to 3 or more"
    )
    with pytest.raises(InputError, match=said):
        _check(load_recipe("cpu-smoke", ["experts.agent.domain.max_turns=1"]))
    assert _check(load_recipe("cpu-smoke", ["experts.agent.domain.max_turns=3"])) == []


def test_fewer_turns_than_some_demonstrations_take_are_a_caution() -> None:
    limited = ["experts.search.domain.max_turns=4"]
    (line,) = _check(load_recipe("search-agent", limited))
    assert "of 8 demonstrations of browsing take more turns, up to" in line


@pytest.mark.parametrize(("advantage", "is_refused"), [("group", True), ("gigpo", False)])
def test_rewards_of_turns_that_no_advantage_looks_at_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, advantage: str, is_refused: bool
) -> None:
    monkeypatch.setattr("flows.checks.trial.findings.try_apart", try_here)
    (tmp_path / "by_turns.py").write_text(REWARD)
    recipe = load_recipe(
        "cpu-smoke",
        [
            f"hooks=[{tmp_path / 'by_turns.py'}]",
            "experts.agent.domain.rewards=[{name: 'by_turns:by_turn', outcome: true}]",
            f"experts.agent.path.rl.algorithm={{advantage: {{kind: {advantage}}}}}",
            "unified=null",
        ],
    )
    if not is_refused:
        assert _check(recipe) == []
        return
    said = (
        r"experts\.agent\.domain\.rewards\.0: by_turns:by_turn says what each turn earned, and"
        rf" nothing looks at it: agent-rl \(advantage {advantage}\)\. Choose the advantage `gigpo`"
    )
    with pytest.raises(InputError, match=said):
        _check(recipe)
