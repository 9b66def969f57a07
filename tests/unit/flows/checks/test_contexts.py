"""How long the texts are that a served teacher takes: what is refused, and what is warned of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flows.checks.recipe_checks import cautions
from flows.checks.servers import served_problems
from flows.load import load_recipe
from flows.post_train import plan_post_train
from tests.parts.chat_parts import random_base

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("own_home")]

SFT = "{sft: {steps: 2, optimizer: {lr: 1e-3}}}"
OPD = "{opd: {steps: 1, optimizer: {lr: 0.1}, served_teachers: {agent: %s}%s}}"


def said(teacher: str, more: str = "") -> tuple[list[str], list[str]]:
    """Problems and warnings. The student has 512 positions, and writes up to 24 tokens."""
    path = f"experts.agent.path=[{SFT}, {OPD % (teacher, more)}]"
    recipe = load_recipe("cpu-smoke", [path])
    plan = plan_post_train(recipe)
    warned = [line for line in cautions(recipe, plan) if "served_teachers" in line]
    return list(served_problems(recipe, plan)), warned


@pytest.mark.parametrize(
    ("length", "is_refused"),
    [(24, True), (25, True), (26, False)],
)
def test_a_teacher_takes_an_answer_with_a_prompt(length: int, is_refused: bool) -> None:
    """One position is for the prompt at least, and one is the server's own."""
    problems, warned = said(f"{{model: base, fleet: {{context_length: {length}}}}}")
    where = "experts.agent.path.1.opd.served_teachers.agent"
    wanted = f"{where}: takes {length} tokens, prompt and all, and scores answers of up to 24"
    assert [line.startswith(wanted) for line in problems] == [True] * is_refused
    assert warned == [
        f"{where}: takes {length} tokens, and a rollout may have 504: one that is too long for the"
        " teacher ends the stage; set experts.agent.path.1.opd.fleet.context_length to"
        f" {length}"
    ]


def test_a_teacher_of_the_students_context_or_a_longer_one_is_fine() -> None:
    assert said("{model: base}") == ([], [])
    assert said("{model: base, fleet: {context_length: 64}}", ", fleet: {context_length: 64}") == (
        [],
        [],
    )
    (problem,), _ = said("{model: base, fleet: {context_length: 600}}")
    assert "is 600, but texts of base have at most 512 tokens" in problem


def test_a_folder_s_own_positions_count(tmp_path: Path) -> None:
    folder = random_base(tmp_path / "big")
    config = json.loads((folder / "config.json").read_text())
    for positions, counts in ((16, (1, 1)), (128, (0, 1)), (4096, (0, 0))):
        changed = json.dumps(config | {"max_position_embeddings": positions})
        other = random_base(tmp_path / f"big-{positions}")
        (other / "config.json").write_text(changed)
        problems, warned = said(f"{{model: {other}}}")
        assert (len(problems), len(warned)) == counts, positions
