"""The turns of a step's samples, from their tokens to what each is worth."""

from __future__ import annotations

import numpy as np
import pytest

from engines.algorithms.spec import Algorithm
from engines.megatron.rl.rl_batch import RlBatch
from engines.megatron.rl.sample_parts import turns_of
from engines.types import Sample, Status
from infra.errors import TrainingStopped
from tests.parts.sample_parts import sample_of

pytestmark = pytest.mark.unit

# `.` is a token of the prompt or of a tool, `*` one that the policy wrote.
GIGPO = {"advantage": {"kind": "gigpo", "gamma": 0.5, "std": False}}


def sample(rollout: str, form: str, tokens: list[int], **more: object) -> Sample:
    trained = [int(sign == "*") for sign in form]
    given: dict[str, object] = {"group_id": "g", "reward": 0.0, "status": Status.COMPLETED, **more}
    return sample_of(
        problem_id="p",
        domain="d",
        rollout_id=rollout,
        sample_index=0,
        tokens=tokens,
        loss_mask=trained,
        logprobs=[-1.0 * t for t in trained],
        weight_versions=[t - 1 for t in trained],
        **given,
    )


def first(**more: object) -> Sample:
    return sample("a", "..**.*", [1, 2, 10, 11, 5, 12], **more)


def second(**more: object) -> Sample:
    return sample("b", "..*..*.*", [1, 2, 13, 6, 6, 14, 5, 15], **more)


def test_turns_are_stretches_of_trained_tokens_and_states_what_stands_before_them() -> None:
    other = sample("c", "..*", [1, 2, 10], group_id="other")
    batch = RlBatch.of([first(turn_rewards=[0.25, 0.5]), second(), other], Algorithm())
    turns = turns_of(batch.samples, batch.flat, 3)
    assert turns.turn_R.tolist() == [0, 0, 1, 2, 3, 4, 5]
    assert turns.sequence_U.tolist() == [0, 0, 1, 1, 1, 2]
    assert turns.shares_U.tolist() == [0.25, 0.5, 0, 0, 0, 0]
    # Both begin with [1, 2]; [5] is answered twice; [6, 6] once; the other group stands alone.
    assert turns.state_U.tolist() == [0, 1, 0, 2, 1, 3]


def test_they_reach_the_advantage() -> None:
    made = [first(reward=1.0, turn_rewards=[0.25, 0.5]), second()]
    algorithm = Algorithm.model_validate(GIGPO)
    batch = RlBatch.of(made, algorithm)
    found = batch.targets(algorithm, None, None).advantages[batch.trained()].tolist()
    # Of the first: 0.25, and 0.5 with the 0.25 that nobody claims -> returns 0.625, 0.75.
    begin, same = 0.5 + 0.3125, 0.5 + 0.375
    assert found == pytest.approx([begin, begin, same, -begin, -0.5, -same])


@pytest.mark.parametrize("truncated", ["train", "mask"])
def test_the_turns_of_a_rollout_that_only_counts_are_compared(truncated: str) -> None:
    algorithm = Algorithm.model_validate({**GIGPO, "truncated": truncated})
    cut = sample("c", "..*.*", [1, 2, 9, 5, 8], status=Status.TRUNCATED, reward=-1.0)
    batch = RlBatch.of([cut, first(reward=1.0)], algorithm)
    kept = batch.samples[0 if truncated == "mask" else 1]
    assert kept.rollout_id == "a"
    found = batch.targets(algorithm, None, None).advantages[batch.trained()].tolist()[-3:]
    # Group: 1 and -1 -> 1. The first turn returns 0.5 and -0.5, the second one 1 and -1.
    assert found == pytest.approx([1.5, 1.5, 2.0])


def test_the_kl_of_a_rollout_that_only_counts_is_part_of_its_turns() -> None:
    kl = {"coef": 0.1, "estimator": "k1", "place": "reward"}
    algorithm = Algorithm.model_validate({**GIGPO, "truncated": "mask", "kl": kl})
    cut = sample("c", "..*", [1, 2, 9], status=Status.TRUNCATED, reward=0.0)
    batch = RlBatch.of([cut, sample("a", "..*", [1, 2, 8])], algorithm)
    # One nat above the reference, and three of the rollout that only counts.
    reference = np.array([0, 0, -2, 0, 0, -4], np.float32)
    found = batch.targets(algorithm, None, reference).advantages[batch.trained()].tolist()
    # -0.1 against -0.3, in the group and in the state.
    assert found == pytest.approx([0.1 + 0.1])


def test_a_wrong_number_of_turns_stops_with_the_rollout() -> None:
    batch = RlBatch.of([first(turn_rewards=[1.0])], Algorithm())
    with pytest.raises(TrainingStopped, match=r"rollout a of p has 2 turns.* what 1 of them"):
        turns_of(batch.samples, batch.flat, 1)
