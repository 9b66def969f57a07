"""The reasoning-gym adapter and its reward, on the real library."""

from __future__ import annotations

import subprocess
import sys
import warnings

import pytest

from engines.types import Message, Status, Transcript
from infra.errors import InputError
from infra.libraries.library import load_reasoning_gym

with warnings.catch_warnings():  # one of the library's own dependencies compiles with a warning
    warnings.simplefilter("ignore")
    load_reasoning_gym()

from curricula.built_in_curricula import build
from rewards.built_in_rewards import build as build_reward

pytestmark = pytest.mark.integration

DATASETS = ["chain_sum", "leg_counting", "gcd", "number_sorting", "word_sorting"]


@pytest.mark.parametrize("dataset", ["word_ladder", "acre", "gsm_symbolic", "list_functions"])
def test_a_dataset_that_makes_its_entries_in_advance_is_refused_by_name(dataset):
    with pytest.raises(InputError, match=f"dataset '{dataset}' makes all its entries when it is"):
        build("reasoning-gym", {"dataset": dataset}).problems("rl", 40, 0)


@pytest.mark.parametrize("dataset", DATASETS)
async def test_gold_answers_score_one_boxed_or_not_and_silence_scores_zero(dataset):
    reward = build_reward("reasoning-gym")
    for shown in build("reasoning-gym", {"dataset": dataset}).demonstrations(5, seed=0):
        gold = shown.turns[0].content
        for content, score in ((gold, 1.0), (rf"\boxed{{{gold}}}", 1.0), ("", 0.0)):
            turns = (Message("assistant", content),)
            verdict = await reward(Transcript(shown.problem, turns, Status.COMPLETED, 9))
            assert verdict.score == score, (content, verdict)


def test_a_late_problem_needs_no_look_at_all_before_it_and_is_the_same_in_each_process():
    options = {"dataset": "chain_sum", "config": {"max_digits": 2}}
    drawn, fresh = build("reasoning-gym", options), build("reasoning-gym", options)
    ids = [
        problem.id for start in range(0, 4000, 8) for problem in drawn.problems("rl", 8, 0, start)
    ]
    looked_at = drawn._members["rl", 0].looked_at
    assert [problem.id for problem in drawn.problems("rl", 8, 0, 3992)] == ids[-8:]
    assert drawn._members["rl", 0].looked_at == looked_at
    assert [problem.id for problem in fresh.problems("rl", 8, 0, 3992)] == ids[-8:]
    assert len(set(ids)) == 4000


FEW_SUMS = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}


def test_splits_share_no_question_and_only_those_of_rl_come_again():
    curriculum = build("reasoning-gym", {"dataset": "gcd", "config": {"max_numbers": 3}})
    questions = {
        split: [p.messages[0].content for p in curriculum.problems(split, 60, seed=0)]
        for split in ("sft", "rl", "distill", "heldout")
    }
    assert sum(len(set(found)) for found in questions.values()) == len(
        set().union(*questions.values())
    )
    assert {len(set(questions[split])) for split in ("sft", "distill", "heldout")} == {60}
    few = build("reasoning-gym", {"dataset": "chain_sum", "config": FEW_SUMS})
    assert len({p.messages[0].content for p in few.problems("rl", 200, seed=0)}) < 200
    with pytest.raises(InputError, match=r"no more than [0-9]+ distinct distill questions"):
        few.problems("distill", 200, seed=0)
    assert [
        p.messages[0].content for p in curriculum.problems("rl", 20, seed=0, start=40)
    ] == questions["rl"][40:]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset": "chain_sums"}, "Did you mean 'chain_sum'"),
        ({"dataset": "chain_sum", "config": {"max_termz": 3}}, "max_termz"),
        ({"dataset": "chain_sum", "config": {"min_terms": 9, "max_terms": 3}}, "`config`"),
        ({"dataset": "chain_sum", "config": {"seed": 3}}, "may not set seed"),
        ({}, "dataset"),
    ],
)
def test_a_wrong_dataset_or_config_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        build("reasoning-gym", options)


def test_reasoning_gym_works_without_pycosat_and_names_it_where_it_is_needed() -> None:
    code = """
import sys, warnings
warnings.simplefilter("ignore")
sys.modules["pycosat"] = None
from curricula.built_in_curricula import build
from infra.errors import InputError
assert build("reasoning-gym", {"dataset": "gcd"}).problems("rl", 2, 0)
try:
    build("reasoning-gym", {"dataset": "zebra_puzzles"}).problems("rl", 1, 0)
except InputError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "zebra_puzzles" in done.stdout, done.stderr
    assert "pycosat" in done.stdout
