"""A rubric's rewards by themselves, and its vetoes, from samples to what a token is worth."""

from __future__ import annotations

from typing import Any

import pytest

from engines.algorithms.combinations import refusals
from engines.algorithms.spec import Algorithm
from engines.types import Group, Problem, Sample, Status
from infra.errors import TrainingStopped
from tests.unit.engines.megatron.test_rl_batch import sample, worth

pytestmark = pytest.mark.unit

GDPO = {"advantage": {"kind": "gdpo", "whiten": False}}
WEIGHTS = {"outcome": 1.0, "length": -0.5}


def scored(rollout: str, outcome: float, length: float, **more: Any) -> Sample:
    made = sample(rollout, outcome - 0.5 * length, **more)
    made.rewards, made.reward_weights = {"outcome": outcome, "length": length}, WEIGHTS
    return made


def test_each_reward_is_compared_by_itself_with_its_weight() -> None:
    # Outcome 1, 0: +-0.7071. Length 2, 6, of a negative weight: +-0.7071 x 0.5.
    made = [scored("a", 1, 2, trained=1), scored("b", 0, 6, trained=1)]
    assert worth(made, **GDPO) == pytest.approx([1.06066, -1.06066], abs=3e-6)
    # Whitened over the batch: mean 0 and variance 1 of two tokens.
    assert worth(made, advantage={"kind": "gdpo"}) == pytest.approx([0.7071, -0.7071], abs=1e-4)


@pytest.mark.parametrize("breaks", ["protocol", "rule"])
def test_a_broken_rollout_has_of_each_reward_the_least(breaks: str) -> None:
    broken = scored("c", 1, 0, trained=1)
    broken.reward = 0.0
    if breaks == "protocol":
        broken.status, broken.rewards, broken.reward_weights = (
            Status.MALFORMED,
            {"outcome": 0.0},
            {},
        )
    else:
        broken.rewards["vetoed"] = 1.0
    made = [scored("a", 1, 2, trained=1), scored("b", 0, 6, trained=1), broken]
    # Outcome 1, 0, 0: 1.1547, -0.5774 twice. Minus length: -2, -6, -6: the same, times 0.5.
    assert worth(made, **GDPO) == pytest.approx([1.73205, -0.86603, -0.86603], abs=1e-5)
    # Rewards 0, -3 and at most -3.
    assert worth(made, advantage={"std": False}) == pytest.approx([2.0, -1.0, -1.0])


def one_right(*lengths: float | None) -> list[Sample]:
    """A rollout for each length, which is `only_right`; None: wrong, so that it was not asked."""
    made = [sample(f"r{n}", 0.0, trained=1) for n in range(len(lengths))]
    for each, length in zip(made, lengths, strict=True):
        each.rewards = {"outcome": 0.0} if length is None else {"outcome": 1.0, "length": length}
        each.reward_weights = {"outcome": 1.0, "length": 2.0}
        each.reward = each.rewards["outcome"] + 2.0 * each.rewards.get("length", 0.0)
    return made


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        # The only right answer has nobody to be compared with: outcome 1, 0, 0, 0 alone.
        ([-0.5, None, None, None], [1.5, -0.5, -0.5, -0.5]),
        # Outcome +-0.8660; length -0.5, 0 of the right ones +-0.7071 x 2.
        ([-0.5, 0.0, None, None], [-0.5482, 2.2802, -0.8660, -0.8660]),
        ([None, None], [0.0, 0.0]),
        ([-1.0, 0.0], [-1.4142, 1.4142]),
    ],
)
def test_a_reward_of_right_answers_alone_compares_these_alone(
    lengths: list[float | None], expected: list[float]
) -> None:
    assert worth(one_right(*lengths), **GDPO) == pytest.approx(expected, abs=1e-4)


def test_a_broken_rollout_is_not_compared_by_a_reward_of_right_answers_alone() -> None:
    made = one_right(-0.5, None, None)
    made[2].status, made[2].reward_weights = Status.MALFORMED, {}
    # Outcome 1, 0, 0: 1.1547, -0.5774 twice; length of the first alone.
    assert worth(made, **GDPO) == pytest.approx([1.1547, -0.57735, -0.57735], abs=1e-4)
    vetoed = one_right(-0.5, 0.0, None)
    vetoed[1].rewards["vetoed"] = 1.0
    # Outcome 1, 0, 0, as it is vetoed; length -0.5 of the first, and of the vetoed one no more.
    assert worth(vetoed, **GDPO) == pytest.approx([1.1547, -0.57735, -0.57735], abs=1e-4)


def test_a_group_whose_others_are_equal_to_a_vetoed_one_has_no_signal() -> None:
    vetoed = scored("a", 1, 0)
    vetoed.reward, vetoed.rewards["vetoed"] = 0.0, 1.0
    problem = Problem("p", "d", ())
    assert not Group(problem, [vetoed, scored("b", 0, 2)]).has_signal
    assert Group(problem, [vetoed, scored("b", 1, 0)]).has_signal


def test_missing_and_lone_rewards_are_refused_by_name() -> None:
    with pytest.raises(TrainingStopped, match="rollout a of p does not say what each reward gave"):
        worth([sample("a", 1), sample("b", 0)], **GDPO)
    alone = sample("a", 1)
    alone.rewards, alone.reward_weights = {"outcome": 1.0}, {"outcome": 1.0}
    with pytest.raises(TrainingStopped, match="outcome is the rubric's only reward"):
        worth([alone], **GDPO)


@pytest.mark.parametrize(
    ("written", "size", "why"),
    [
        ({"overlong": {"margin": 0.2}}, 2, "overlong: gdpo compares the rubric's rewards alone"),
        ({"kl": {"coef": 0.1, "place": "reward"}}, 2, "kl.place: gdpo compares"),
        ({}, 1, "a group of one"),
    ],
)
def test_what_gdpo_does_not_read_is_refused(written: dict[str, Any], size: int, why: str) -> None:
    said = list(refusals(Algorithm.model_validate({**GDPO, **written}), size))
    assert len(said) == 1
    assert why in said[0]
    assert list(refusals(Algorithm.model_validate(GDPO), 2)) == []
