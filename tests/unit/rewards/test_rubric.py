"""A rubric: weights, the outcome, how a rollout ended, and rewards that fail."""

from __future__ import annotations

import asyncio
import functools
import math
import sys
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from engines.types import Message, Problem, Status, Transcript, Verdict
from infra.errors import InputError
from rewards.built_in_rewards import build
from rewards.rubric import Rubric, Term
from tasks.domain import Domain, RewardTerm
from tasks.live_domain import as_term
from tasks.rl.spec import RlSettings, RlSpec

pytestmark = pytest.mark.unit


class Fixed:
    """A reward that always says the same, or raises it."""

    def __init__(self, said: object) -> None:
        self.said = said
        self.calls = 0

    async def __call__(self, transcript: Transcript) -> Verdict:
        self.calls += 1
        if isinstance(self.said, Exception):
            raise self.said
        return self.said


def _transcript(status: Status = Status.COMPLETED, reason: str = "") -> Transcript:
    problem = Problem("p", "reasoning", (), {"answer": "42"})
    return Transcript(problem, (Message("assistant", "42"),), status, 5, reason)


def _rubric(outcome: object, shaping: object = Verdict(0.0)) -> Rubric:
    terms = [Term("right", 1.0, True, Fixed(outcome)), Term("short", 0.5, False, Fixed(shaping))]
    return Rubric(terms)


async def test_reward_is_the_weighted_sum_and_outcome_is_free_of_shaping():
    rubric = _rubric(Verdict(1.0, {"close": 0.5}), Verdict(-0.4, reason="long"))
    judgement = await rubric.judge(_transcript())
    assert judgement.reward == pytest.approx(0.8)
    assert judgement.breakdown == {"outcome": 1.0, "right/close": 0.5, "short": -0.4}
    assert judgement.reason == "long"
    assert not judgement.failed


@pytest.mark.parametrize(
    ("outcome", "thinking", "status", "expected"),
    [
        (1.0, True, Status.COMPLETED, 1.0 - 0.5 * 0.4),
        (0.5, True, Status.COMPLETED, 0.5),
        (1.0, False, Status.COMPLETED, 1.0 - 0.5 * 0.4 - 0.25),
        (0.5, False, Status.COMPLETED, 0.5 - 0.25),
        (1.0, False, Status.TRUNCATED, -0.25),
        (1.0, None, Status.COMPLETED, 1.0 - 0.5 * 0.4),
    ],
)
async def test_lengths_count_for_right_answers_and_each_mode_may_have_its_own_reward(
    outcome: float, thinking: bool | None, status: Status, expected: float
) -> None:
    length, brief = Fixed(Verdict(-0.4)), Fixed(Verdict(-0.25))
    rubric = Rubric(
        [
            Term("right", 1.0, True, Fixed(Verdict(outcome))),
            Term("length", 0.5, False, length, only_right=True),
            Term("brief", 1.0, False, brief, thinking=False),
        ]
    )
    asked = _transcript(status)
    judgement = await rubric.judge(
        replace(asked, problem=replace(asked.problem, thinking=thinking))
    )
    assert judgement.reward == pytest.approx(expected)
    is_right = outcome == 1.0 and status is Status.COMPLETED
    assert ("length" in judgement.breakdown) == is_right, "a wrong answer has no score of 0"
    assert length.calls == is_right, "a judge is not asked about a wrong answer, nor fails it"
    assert brief.calls == (thinking is False)


async def test_a_truncated_rollout_has_outcome_zero_and_is_still_shaped():
    judgement = await _rubric(Verdict(1.0), Verdict(-1.0)).judge(_transcript(Status.TRUNCATED))
    assert judgement.reward == -0.5
    assert judgement.breakdown == {"outcome": 0.0, "short": -1.0}


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (ValueError("boom"), "reward 'right' raised ValueError: boom"),
        (Verdict(math.nan), "finite"),
        (Verdict(math.inf), "finite"),
        (Verdict(1.0, {"part": math.nan}), "finite"),
        (Verdict("1"), "`score` is str '1'"),
        (Verdict(np.float32("nan")), "finite"),
        (Verdict(torch.zeros(2)), "`score` is Tensor tensor([0., 0.])"),
        (Verdict(1.0, {"part": None}), "`parts['part']` is None"),
        (Verdict(1.0, [1.0]), "`parts` is list [1.0]"),
        (Verdict(1.0, turns="ab"), "`turns` is str 'ab'"),
        (math.nan, "returned nan"),
        (None, "returned None: a reward returns its score as one number"),
        ("good", "returned str 'good'"),
        ({"score": 1.0}, "returned dict {'score': 1.0}"),
        (InputError("no such thing"), "reward 'right' cannot judge: no such thing"),
        (Verdict(1.001), "between 0 and 1"),
        (Verdict(1.5), "between 0 and 1"),
    ],
)
async def test_a_reward_that_fails_makes_a_failed_judgement_with_its_reason(said, reason):
    judgement = await _rubric(said).judge(_transcript())
    assert judgement.failed
    assert judgement.reward == 0.0
    assert reason in judgement.reason


NUMBERS = [
    *(1, 1.0, True, np.float16(1), np.float32(1), np.float64(1), np.int64(1), np.bool_(True)),
    *(np.array(1.0), np.array([1]), torch.tensor(1.0), torch.tensor(1), torch.tensor([True])),
    *(torch.tensor(1.0, dtype=torch.bfloat16), torch.ones((), requires_grad=True)),
    *(Decimal(1), Fraction(1), 1 + 1e-7),
]


@pytest.mark.parametrize("one", NUMBERS, ids=lambda n: f"{type(n).__name__}-{n!r}")
@pytest.mark.parametrize("form", ["score", "part", "turn", "alone"])
async def test_numbers_of_every_library_are_scores(one, form):
    said = {
        "score": Verdict(one),
        "part": Verdict(1.0, {"part": one}),
        "turn": Verdict(1.0, turns=[one]),
        "alone": one,
    }[form]
    judgement = await _rubric(said).judge(_transcript())
    assert not judgement.failed, judgement.reason
    assert judgement.reward == judgement.breakdown["outcome"] == 1.0
    assert judgement.breakdown.get("right/part", 1.0) == pytest.approx(1.0)
    assert judgement.turns == pytest.approx([1.0] if form == "turn" else [])
    numbers = [judgement.reward, *judgement.breakdown.values(), *judgement.turns]
    assert {type(number) for number in numbers} == {float}


async def test_what_turns_earned_is_weighted_and_summed():
    two = Problem("p", "agent", (), {})
    said = (Message("assistant", "!ask"), Message("tool", "42"), Message("assistant", "42"))
    transcript = Transcript(two, said, Status.COMPLETED, 5)
    rubric = _rubric(Verdict(1.0, turns=(0.25, 0.5)), Verdict(0.0, turns=[1.0, -1.0]))
    judgement = await rubric.judge(transcript)
    assert (judgement.reward, judgement.turns) == (1.0, [0.75, 0.0])
    plain = await _rubric(Verdict(1.0, turns=(0.25, 0.5))).judge(transcript)
    assert plain.turns == [0.25, 0.5]
    for turns, reason in (
        ((1.0,), "what 1 turns earned, of a rollout with 2"),
        ((math.nan, 0), "finite"),
    ):
        failed = await _rubric(Verdict(1.0, turns=turns)).judge(transcript)
        assert failed.failed
        assert reason in failed.reason


async def test_terms_are_asked_at_once():
    both = asyncio.Barrier(2)

    class Waits:
        async def __call__(self, transcript: Transcript) -> Verdict:
            await asyncio.wait_for(both.wait(), 5)
            return Verdict(1.0)

    rubric = Rubric([Term("a", 1.0, True, Waits()), Term("b", 1.0, False, Waits())])
    assert (await rubric.judge(_transcript())).reward == 2.0


async def test_cancelling_a_judgement_cancels_it():
    class Sleeps:
        async def __call__(self, transcript: Transcript) -> Verdict:
            await asyncio.Event().wait()
            raise AssertionError

    judging = asyncio.create_task(Rubric([Term("a", 1.0, True, Sleeps())]).judge(_transcript()))
    await asyncio.sleep(0)
    judging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await judging


@pytest.mark.parametrize("outcomes", [0, 2])
def test_a_rubric_has_exactly_one_outcome(outcomes):
    terms = [Term(f"t{i}", 1.0, i < outcomes, Fixed(Verdict(0.0))) for i in range(2)]
    with pytest.raises(InputError, match="exactly one term"):
        Rubric(terms)


def test_a_rubric_names_no_reward_twice():
    reward = Fixed(Verdict(0.0))
    with pytest.raises(InputError, match="twice"):
        Rubric([Term("a", 1.0, True, reward), Term("a", 1.0, False, reward)])


async def always(transcript: Transcript, *, score: float = 1.0) -> Verdict:
    return Verdict(score)


def half(transcript: Transcript) -> float:
    return 0.5


def no_transcript() -> float:
    return 0.5


def of_verl(data_source: str, solution_str: str, ground_truth: str) -> float:
    return 0.5


def of_trl(completions: list[str], **kwargs: Any) -> list[float]:
    return [0.5 for _ in completions]


def of_openrlhf(queries: list[str], prompts: list[str], labels: list[str]) -> list[float]:
    return [0.5 for _ in queries]


async def of_slime(args: Any, sample: Any, **kwargs: Any) -> float:
    return 0.5


def of_two(response: str, label: str) -> float:
    return 0.5


class Quarter:
    def __call__(self, transcript: Transcript) -> float:
        return 0.25


class Silent:
    pass


quarter, half_of = Quarter(), functools.partial(half)


@pytest.mark.parametrize(
    ("name", "score"), [("half", 0.5), ("Quarter", 0.25), ("quarter", 0.25), ("half_of", 0.5)]
)
async def test_a_users_reward_is_a_function_or_an_object_and_may_return_a_number(
    monkeypatch, name, score
):
    monkeypatch.setitem(sys.modules, "hook_under_test", sys.modules[__name__])
    assert await build(f"hook_under_test:{name}")(_transcript()) == Verdict(score)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_transcript", r"no_transcript\(\) made float 0.5, which is not a reward. Write `def"),
        ("of_verl", r'adapted\(transcript\): return of_verl\("", transcript.answer, transcript.pr'),
        ("of_trl", r"return of_trl\(completions=\[transcript.answer\], answer=\[transcript.pr"),
        ("of_openrlhf", r"for OpenRLHF.* return of_openrlhf\(\[transcript.answer\], \[\"\"\], \["),
        ("of_slime", "for slime.* return score_of\\(transcript.answer, "),
        ("of_two", "needs label as well: it is called with the transcript alone"),
        ("Silent", "Silent has no `__call__`, which is not a reward"),
    ],
)
def test_what_cannot_be_called_with_a_transcript_is_refused_with_what_can(
    monkeypatch, name, message
):
    monkeypatch.setitem(sys.modules, "hook_under_test", sys.modules[__name__])
    with pytest.raises(InputError, match=message):
        build(f"hook_under_test:{name}")


async def test_a_users_async_function_is_a_reward_and_takes_options(monkeypatch):
    monkeypatch.setitem(sys.modules, "hook_under_test", sys.modules[__name__])
    reward = build("hook_under_test:always", {"score": 0.25})
    assert (await reward(_transcript())).score == 0.25
    with pytest.raises(InputError, match="Did you mean 'score'\\? Allowed: score"):
        build("hook_under_test:always", {"scores": 1})
    with pytest.raises(InputError, match="option 'score' takes float, got"):
        build("hook_under_test:always", {"score": "0.25"})
    with pytest.raises(InputError, match="option 'ignore_case' takes bool, got 'false'"):
        build("exact", {"ignore_case": "false"})


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("maths", {}, "Did you mean 'math'"),
        ("math", {"timeout": 3}, "Allowed: time_limit"),
        ("math", {"time_limit": 0}, "time_limit"),
        ("length", {"budget": 10}, "it lacks 'margin'"),
        ("length", {"budget": 10, "margin": 11}, "margin"),
        ("repetition", {"ngram": 0}, "ngram"),
        ("pathologies", {"kinds": ["loops"]}, "no such kind: 'loops'. Allowed: language-mixing"),
        ("nowhere:Reward", {}, "no module 'nowhere'"),
        ("rewards.math:Maths", {}, "Did you mean 'Math'"),
        ("builtins:dict", {}, "__call__"),
    ],
)
def test_a_wrong_reward_is_refused_with_what_is_allowed(name, options, message):
    with pytest.raises(InputError, match=message):
        build(name, options)


@pytest.mark.parametrize(
    ("rule", "status", "reward", "vetoed"),
    [
        (1.0, Status.COMPLETED, 1.0 + 0.5 * 1.0 + 2.0, False),
        (0.0, Status.COMPLETED, 0.0, True),
        (-1.0, Status.COMPLETED, 0.0, True),
        (0.0, Status.TRUNCATED, 0.0, True),
        (1.0, Status.TRUNCATED, 0.5 * 1.0 + 2.0, False),
    ],
)
async def test_a_broken_rule_leaves_nothing_whatever_the_others_say(
    rule: float, status: Status, reward: float, vetoed: bool
) -> None:
    outcome, other = Verdict(1.0, turns=[1.0]), Fixed(Verdict(2.0))
    rubric = Rubric(
        [
            Term("right", 1.0, True, Fixed(outcome)),
            Term("rule", 0.5, False, Fixed(Verdict(rule, reason="said")), veto=True),
            Term("kind", 1.0, False, other),
        ]
    )
    judgement = await rubric.judge(_transcript(status))
    is_cut = status is Status.TRUNCATED
    assert judgement.reward == reward
    wanted = {"outcome": 0.0 if is_cut else 1.0, "rule": rule, "kind": 2.0}
    assert judgement.breakdown == (wanted | {"vetoed": 1.0} if vetoed else wanted)
    assert judgement.weights == {"outcome": 1.0, "rule": 0.5, "kind": 1.0}
    assert ("vetoed by rule" in judgement.reason) is vetoed
    assert judgement.turns == ([] if vetoed or is_cut else [1.0])
    assert not judgement.failed
    other.said = ValueError("no")
    assert (await rubric.judge(_transcript(status))).failed


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ({"name": "math", "outcome": True, "veto": True}, "veto: the outcome cannot forbid"),
        ({"name": "my:rule", "group": True, "veto": True}, "veto: a reward of whole groups"),
        ({"name": "length", "veto": True}, "veto: length gives 0 to what is fine"),
        ({"name": "format", "label": "vetoed"}, "label: `vetoed` marks a rollout with a veto"),
    ],
)
def test_what_may_not_veto_is_refused(written: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        RewardTerm.model_validate(written)
    assert "veto" not in RewardTerm(name="format").model_dump()
    assert as_term(RewardTerm(name="format", veto=True), Fixed(0.0)).veto


@pytest.mark.parametrize(("weight", "is_refused"), [(0.0, True), (0.5, False)])
def test_an_advantage_that_compares_rewards_needs_two(weight: float, is_refused: bool) -> None:
    rewards = [{"name": "math", "outcome": True}, {"name": "format", "weight": weight}]
    domain = {"name": "a", "curriculum": {"name": "reasoning"}, "rewards": rewards}
    settings = {"steps": 9, "optimizer": {"lr": 1e-4}, "algorithm": {"advantage": "gdpo"}}
    spec = RlSpec.model_construct(
        domains=[Domain.model_validate(domain)], settings=RlSettings.model_validate(settings)
    )
    why = "gdpo compares several rewards by themselves, and math is the only one with a weight"
    assert any(why in said for said in spec.problems()) is is_refused
