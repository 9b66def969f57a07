"""The math reward's judge: math-verify in its own process."""

from __future__ import annotations

import asyncio
import pickle
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from curricula.built_in_curricula import build
from curricula.reasoning import Reasoning
from engines.types import Message, Problem, Status, Transcript
from infra.errors import InputError
from rewards.math import Math, MathJudge, TookTooLong

pytestmark = pytest.mark.integration

ENDLESS = "9^{9^{9^9}}"


@pytest.fixture(scope="module")
def judge():
    judge = MathJudge(time_limit=20.0)
    yield judge
    judge.close()


@pytest.mark.parametrize(
    ("gold", "answer", "is_equal"),
    [
        ("1/2", r"\frac{1}{2}", True),
        ("0.5", "1/2", True),
        ("x+1", "1+x", True),
        (r"\sqrt{8}", r"2\sqrt{2}", True),
        (r"\{1,2\}", r"\{2,1\}", True),
        ("1/2", "1/3", False),
        ("x+1", "x-1", False),
        ("2", "nonsense words", False),
    ],
)
async def test_answers_are_compared_as_mathematics(judge, gold, answer, is_equal):
    assert await judge.equal(gold, answer) is is_equal


@pytest.fixture(scope="module")
def reward(judge):
    made = Math(time_limit=20.0)
    made._judge = judge
    return made


async def verdict(reward: Math, gold: Any, answer: str) -> float:
    problem = Problem("p", "reasoning", (), {"answer": gold})
    said = Message("assistant", f"\\boxed{{{answer}}}")
    return (await reward(Transcript(problem, (said,), Status.COMPLETED, 9))).score


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        *[("42", each) for each in ("42", "+42", "042", "42.0", "$42$", "x = 42", "12+30=42")],
        ("12", r"12\text{ cm}"),
        *[("1234", each) for each in ("1,234", "1 234", r"1{,}234", r"1.234\times 10^3")],
        ("1000000", "10^6"),
        *[("1/2", each) for each in ("1/2", r"\frac{1}{2}", r"\dfrac{2}{4}", "0.5", "50%")],
        *[("3/2", each) for each in ("1 1/2", r"1\frac{1}{2}", "1.5")],
        ("0.5", "1/2"),
        ("-5", "-5"),
        ("x+1", "1+x"),
        (r"\sqrt{8}", r"2\sqrt{2}"),
    ],
)
async def test_a_number_may_be_written_in_many_ways(reward, gold, answer):
    assert await verdict(reward, gold, answer) == 1.0


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        *[("42", each) for each in ("12+30", "6*7", r"6\times7", "52-10", "84/2", r"\frac{84}{2}")],
        *[("42", each) for each in ("6(7)", "42=12+30", "40, 42", "2+40=", "4 2", "")],
        *[("8", each) for each in ("2^3", "{2}^{3}", r"\sqrt{64}", r"\lfloor8.5\rfloor")],
        ("120", "5!"),
        ("1/2", "1/4+1/4"),
        ("1/2", r"\frac{1}{4}+\frac14"),
        ("11/2", "1 1/2"),
        ("12", "1 2"),
    ],
)
async def test_a_sum_that_is_left_open_is_no_answer(reward, gold, answer):
    assert await verdict(reward, gold, answer) == 0.0


@pytest.mark.parametrize("level", sorted(Reasoning.levels))
async def test_a_question_is_no_answer_to_itself(reward, level):
    curriculum = build("reasoning", {"levels": [level]})
    for problem in curriculum.problems("heldout", 30, seed=1):
        (question,) = [m.content for m in problem.messages if m.role == "user"]
        assert await verdict(reward, problem.reference["answer"], question) == 0.0, question


def table() -> list[tuple[str, str, float]]:
    lines = (Path(__file__).with_name("math_pairs.txt")).read_text().splitlines()
    pairs = [(line[0], *line[2:].split(" :: ")) for line in lines if line[:2] in ("+ ", "- ")]
    return [(gold, answer, float(sign == "+")) for sign, gold, answer in pairs]


async def test_every_pair_of_the_table_gets_its_verdict(reward):
    pairs = table()
    assert len(pairs) > 2700
    given = [(gold, said, await verdict(reward, gold, said)) for gold, said, _ in pairs]
    assert [g for g, wanted in zip(given, pairs, strict=True) if g != wanted] == []


@pytest.mark.parametrize(
    "said", [r"{" * 300, r"\frac" * 90, "9" * 400 + "e3000", "(1," * 120, "<x" * 200]
)
async def test_what_nobody_can_read_is_wrong_at_once(reward, said):
    started = time.monotonic()
    for gold in ("5", r"\{1,2\}", "x+1", "x>5", "(1,2)"):
        assert await verdict(reward, gold, f"{said}}}") == 0.0
    assert time.monotonic() - started < 30


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        (42, "42"),
        (42.0, "42"),
        (0.1 + 0.2, "0.3"),
        (1e3, "1000"),
        (True, "true"),
        (["1/2", "50"], "50"),
        (r'["\\frac{1}{2}"]', "1/2"),
        ('["7", "50"]', "50"),
        ([1.0, 2.0], "2"),
        (r"So it is \boxed{42}.", "42"),
        (r"So $x=\boxed{1}$ or $\boxed{2}$.", "2, 1"),
    ],
)
async def test_a_reference_is_a_value_and_not_its_text(reward, reference, said):
    assert await verdict(reward, reference, said) == 1.0


@pytest.mark.parametrize(
    ("text", "score"),
    [
        (r"It is \boxed {42}.", 1.0),
        ("It is \\boxed\n{42}.", 1.0),
        (r"It is \boxed 42.", 1.0),
        (r"It is $\boxed{\boxed{42}}$.", 1.0),
        (r"It is \fbox{42}.", 1.0),
        (r"First \boxed{12}, then \boxed{42}.", 1.0),
        (r"First \boxed{42}, then \boxed{12}.", 0.0),
        (r"\boxed{42}, so \boxed{42}.", 1.0),
        (r"\boxed{42}, \boxed{42}", 1.0),
        (r"$\boxed{42}$, $\boxed{12}$", 0.0),
        ("The answer is 42.", 0.0),
        (r"It is \boxed{42", 0.0),
    ],
)
async def test_the_last_box_of_the_answer_counts(reward, text, score):
    problem = Problem("p", "reasoning", (), {"answer": "42"})
    given = await reward(Transcript(problem, (Message("assistant", text),), Status.COMPLETED, 9))
    assert given.score == score
    assert (
        score or "12', not '42'" in given.reason or r"reads what stands in \boxed" in given.reason
    )


@pytest.mark.parametrize("reference", [{"f": 1}, '{"func_name": "f", "N": null}'])
async def test_an_object_is_no_reference(reward, reference):
    with pytest.raises(InputError, match="must be a number or a text"):
        await verdict(reward, reference, "42")


async def test_a_box_in_the_thought_alone_is_no_answer(reward):
    problem = Problem("p", "reasoning", (), {"answer": "42"}, thinking=True)
    said = Message("assistant", "It is 42.", reasoning=r"So \boxed{42}")
    given = await reward(Transcript(problem, (said,), Status.COMPLETED, 9))
    assert (given.score, given.reason[:16]) == (0.0, "no boxed answers")


async def test_many_questions_at_once_get_their_own_answers(judge):
    answers = await asyncio.gather(*(judge.equal(f"{n}/7", f"{2 * n}/14") for n in range(1, 9)))
    wrong = await asyncio.gather(*(judge.equal(f"{n}/7", f"{n}/8") for n in range(1, 9)))
    assert all(answers)
    assert not any(wrong)


async def test_an_endless_answer_is_cut_off_with_its_reason_and_the_next_one_works(
    judge, reward, monkeypatch
):
    started = time.monotonic()
    problem = Problem("p", "reasoning", (), {"answer": r"\sqrt{2}"})
    said = Message("assistant", rf"\boxed{{{ENDLESS}}}")
    with monkeypatch.context() as patch:
        patch.setattr(judge, "time_limit", 1.0)
        given = await reward(Transcript(problem, (said,), Status.COMPLETED, 9))
        assert judge._process is None, "it was ended"
    assert (given.score, "no verdict within 1 s" in given.reason) == (0.0, True)
    assert await judge.equal("1/2", "0.5")
    assert time.monotonic() - started < 60


async def test_a_killed_worker_is_replaced_and_asked_again(judge):
    assert await judge.equal("1/2", "0.5")
    judge._process.kill()
    judge._process.wait()
    assert await judge.equal("1/2", "0.5")
    judge._process.send_signal(signal.SIGSTOP)  # it gets the question and does not answer it
    asked = asyncio.create_task(judge.equal("1/2", "0.5"))
    await asyncio.sleep(0.2)
    judge._process.kill()
    assert await asked


async def test_a_question_that_ends_every_worker_is_no_equality(judge):
    judge._process.send_signal(signal.SIGSTOP)
    asked = asyncio.create_task(judge.equal("1/2", "0.5"))
    await asyncio.sleep(0.2)
    first = judge._process
    first.kill()
    while judge._process in (first, None):
        await asyncio.sleep(0.01)
    judge._process.kill()
    with pytest.raises(TookTooLong, match="died twice"):
        await asked


def test_a_pickled_judge_starts_its_own_worker():
    copy = pickle.loads(pickle.dumps(MathJudge(3.0)))
    assert copy.time_limit == 3.0
    assert copy._process is None
