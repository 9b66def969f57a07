"""The turns of a step's samples, from their tokens to what each is worth."""

from __future__ import annotations

import pytest

from engines.algorithms.spec import Algorithm
from engines.megatron.train.rl_batch import RlBatch
from engines.megatron.train.turns import turns_of
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
        **given,  # type: ignore[arg-type]
    )


def first(**more: object) -> Sample:
    return sample("a", "..**.*", [1, 2, 10, 11, 5, 12], **more)


def second(**more: object) -> Sample:
    return sample("b", "..*..*.*", [1, 2, 13, 6, 6, 14, 5, 15], **more)


def test_turns_are_stretches_of_trained_tokens_and_states_what_stands_before_them() -> None:
    other = sample("c", "..*", [1, 2, 10], group_id="other")
    batch = RlBatch.of([first(turn_rewards=[0.25, 0.5]), second(), other], Algorithm())
    turns = turns_of(batch.samples, batch.flat)
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


def test_a_sample_that_only_counts_has_no_turns() -> None:
    algorithm = Algorithm.model_validate({**GIGPO, "truncated": "mask"})
    cut = sample("c", "..*", [1, 2, 9], status=Status.TRUNCATED, reward=-1.0)
    batch = RlBatch.of([cut, first(reward=1.0)], algorithm)
    found = batch.targets(algorithm, None, None).advantages[batch.trained()].tolist()
    assert found == pytest.approx([1.0, 1.0, 1.0])


def test_a_wrong_number_of_turns_stops_with_the_rollout() -> None:
    batch = RlBatch.of([first(turn_rewards=[1.0])], Algorithm())
    with pytest.raises(TrainingStopped, match=r"rollout a of p has 2 turns.* what 1 of them"):
        turns_of(batch.samples, batch.flat)
