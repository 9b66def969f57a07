"""Rewards that a trial refuses because they change what they are given."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.checks.recipe_checks import cautions
from flows.checks.trial.tried_parts import findings_about
from flows.load import load_recipe
from flows.post_train import plan_post_train

pytestmark = pytest.mark.unit

SOURCE = """
def reads(transcript):
    return 1.0 if transcript.answer else 0.0

def pops(transcript):
    return 1.0 if transcript.problem.reference.pop("answer") in transcript.answer else 0.0

def notes(transcript):
    transcript.problem.metadata["seen"] = True
    transcript.files["a.txt"] = "x"
    return 1.0 if transcript.answer else 0.0

def forgets(transcripts):
    for transcript in transcripts:
        transcript.problem.reference.clear()
    return [float(bool(transcript.answer)) for transcript in transcripts]

def sorts(transcripts):
    transcripts.sort(key=lambda each: each.answer)
    return [float(bool(transcript.answer)) for transcript in transcripts]
"""


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("reads", ""),
        ("pops", "transcript.problem.reference,"),
        ("notes", "transcript.problem.metadata and transcript.files,"),
        ("forgets", "transcripts[i].problem.reference,"),
        ("sorts", "transcripts,"),
    ],
)
def test_a_reward_may_only_read_what_it_is_given(
    name: str, changed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "changing_rewards.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    found = findings_about("reward", f"changing_rewards:{name}", {}, "reasoning").problems
    if not changed:
        assert not found
        return
    (line,) = found
    assert f" changes {changed} which it may only read" in line


@pytest.mark.parametrize(("shown", "is_slip"), [("{reference.answer}", False), ("{rubric}", True)])
def test_a_prompt_that_no_problem_is_asked_is_told(shown: str, is_slip: bool) -> None:
    asked = f"prompt: 'Clear? {{answer}}', reference_prompt: '{shown}? {{answer}}'"
    judge = (
        f"{{name: external-judge, options: {{url: 'http://127.0.0.1:9/v1', model: m, {asked}}}}}"
    )
    rewards = f"experts.reasoning.domain.rewards=[{{name: math, outcome: true}}, {judge}]"
    recipe = load_recipe("cpu-smoke", [rewards, "determinism=close"])
    said = [
        line
        for line in cautions(recipe, plan_post_train(recipe))
        if "reference_prompt: none of " in line
    ]
    assert len(said) == is_slip
