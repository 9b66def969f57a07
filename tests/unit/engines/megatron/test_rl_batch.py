"""From samples to what each token is worth: who counts, who trains, which denominators."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engines.algorithms.aggregation import counts, trains
from engines.algorithms.spec import Algorithm
from engines.megatron.parallel import Layout
from engines.megatron.rl.rl_batch import RlBatch
from engines.megatron.rl.teachers import TeacherScores
from engines.megatron.spec import Parallel
from engines.types import Sample, Status
from infra.errors import TrainingStopped
from tests.parts.sample_parts import sample_of

pytestmark = pytest.mark.unit

HERE = Layout(Parallel(), rank=0, tp_rank=0, pp_rank=0, cp_rank=0, dp_rank=0)
PLAIN = {"advantage": {"std": False}}


def sample(
    rollout: str,
    reward: float = 0.0,
    *,
    group: str = "g",
    trained: int = 2,
    status: Status = Status.COMPLETED,
    version: int = 0,
    budget: int = 8,
) -> Sample:
    """Two prompt tokens, then `trained` trained ones of logprob -1."""
    return sample_of(
        problem_id="p",
        domain="d",
        group_id=group,
        rollout_id=rollout,
        sample_index=0,
        tokens=list(range(2 + trained)),
        loss_mask=[0, 0] + [1] * trained,
        logprobs=[0.0, 0.0] + [-1.0] * trained,
        weight_versions=[-1, -1] + [version] * trained,
        status=status,
        reward=reward,
        token_budget=budget,
    )


def worth(samples: list[Sample], **written: object) -> list[float]:
    """The advantage of each trained token."""
    algorithm = Algorithm.model_validate({**PLAIN, **written})
    batch = RlBatch.of(samples, algorithm)
    return batch.targets(algorithm, None, None).advantages[batch.trained()].tolist()


# Rules for samples


@pytest.mark.parametrize(
    ("status", "does_count", "does_train"),
    [
        (Status.COMPLETED, True, True),
        (Status.MALFORMED, True, True),
        (Status.TRUNCATED, True, True),
        (Status.ABORTED, False, False),
        (Status.FAILED, False, False),
    ],
)
def test_how_a_rollout_ended_decides_what_becomes_of_it(
    status: Status, does_count: bool, does_train: bool
) -> None:
    made = sample("r", status=status)
    assert counts(made) is does_count
    assert trains(made, "train") is does_train
    assert trains(made, "mask") is (does_train and status is not Status.TRUNCATED)


def test_a_sample_without_a_trained_token_neither_counts_nor_trains() -> None:
    empty, first_only = sample("r", trained=0), sample("r", trained=1)
    first_only.loss_mask = np.array([1, 0, 0], np.bool_)
    assert not counts(empty)
    assert not counts(first_only)
    first_only.loss_mask = np.array([0, 1, 0], np.bool_)
    assert counts(first_only)


def test_what_does_not_count_leaves_the_groups_mean_alone() -> None:
    others = [
        sample("c", 50, status=Status.ABORTED),
        sample("d", 50, status=Status.FAILED),
        sample("e", 50, trained=0),
    ]
    assert worth([sample("a", 1), *others, sample("b", 0)]) == [0.5, 0.5, -0.5, -0.5]


def test_a_masked_truncated_rollout_counts_and_does_not_train() -> None:
    batch = [sample("a", 1), sample("b", 0, status=Status.TRUNCATED), sample("c", 0.5)]
    assert worth(batch) == [0.5, 0.5, -0.5, -0.5, 0, 0]
    # The mean of all three, the tokens of two.
    assert worth(batch, truncated="mask") == [0.5, 0.5, 0, 0]


def test_a_masked_rollout_has_its_length_in_the_baseline_of_opo() -> None:
    batch = [sample("a", 1, trained=3), sample("b", 0, trained=1, status=Status.TRUNCATED)]
    opo = {"advantage": {"kind": "opo"}, "truncated": "mask"}
    # Rewards 1, 0 of 3 and 1 tokens: the baseline is 0.75.
    assert worth(batch, **opo) == pytest.approx([0.25] * 3)


KL_REWARD = {"coef": 0.1, "estimator": "k1", "place": "reward"}
MASKED = {"truncated": "mask", "kl": KL_REWARD}


@pytest.mark.parametrize("old_logprobs", ["engine", "trainer"])
@pytest.mark.parametrize(
    ("advantage", "wanted"),
    # Totals 1 - 0.1 x 2 tokens x 1 nat = 0.8, and 1 - 0.1 x 3 tokens x 2 nats = 0.4 of the masked
    # one; opo: the baseline is (2 x 0.8 + 3 x 0.4) / 5 = 0.56.
    [({"kind": "group", "std": False}, 0.2), ({"kind": "rloo"}, 0.4), ({"kind": "opo"}, 0.24)],
)
def test_a_masked_rollout_is_compared_with_its_own_kl(
    old_logprobs: str, advantage: dict[str, object], wanted: float
) -> None:
    algorithm = Algorithm.model_validate(
        {**MASKED, "advantage": advantage, "old_logprobs": old_logprobs}
    )
    masked = sample("b", 1, trained=3, status=Status.TRUNCATED)
    batch = RlBatch.of([masked, sample("a", 1)], algorithm)
    assert len(batch.scored(algorithm).tokens) == 9
    reference = np.array([0, 0, -2, -2, 0, 0, -3, -3, -3], np.float32)
    trainer = np.array([0, 0, -1, -1, 0, 0, -1, -1, -1], np.float32)
    old = trainer if old_logprobs == "trainer" else None
    got = batch.targets(algorithm, old, reference).advantages[batch.trained()]
    assert got.tolist() == pytest.approx([wanted] * 2)


def test_nothing_more_is_scored_than_what_is_read() -> None:
    masked, kept = sample("b", status=Status.TRUNCATED), sample("a")
    for written in ({}, {"kl": {"coef": 0.1}}, {"kl": KL_REWARD | {"coef": 0.0}}):
        algorithm = Algorithm.model_validate({"truncated": "mask", **written})
        batch = RlBatch.of([masked, kept], algorithm)
        assert batch.scored(algorithm) is batch.learned


def test_a_step_with_nothing_to_train_on_stops() -> None:
    gone = [sample("a", status=Status.FAILED), sample("b", trained=0)]
    with pytest.raises(TrainingStopped, match="none of the step's 2 samples"):
        RlBatch.of(gone, Algorithm())
    cut = [sample("a", status=Status.TRUNCATED)]
    with pytest.raises(TrainingStopped, match="masked as truncated"):
        RlBatch.of(cut, Algorithm(truncated="mask"))


def test_equal_rewards_train_at_advantage_zero_and_stay_in_the_denominator() -> None:
    batch = [sample("a", 0.1), sample("b", 0.1), sample("c", 0.1)]
    assert worth(batch, advantage={"std": True}) == [0] * 6
    assert denominator(batch, "token_mean") == 6


# Length


def test_the_overlong_penalty_is_of_the_whole_rollout_and_its_own_budget() -> None:
    # Rollout a: 4 + 4 tokens of 8, penalty -1. Rollout b: 2 of 8, none. Margin 0.5 begins at 4.
    batch = [sample("a", 1, trained=4), sample("a", 1, trained=4), sample("b", 1)]
    got = worth(batch, overlong={"margin": 0.5, "weight": 0.5})
    assert got == pytest.approx([-0.25] * 8 + [0.25] * 2)
    # A written budget wins: 16 tokens, so rollout a stays at its end of the margin: no penalty.
    assert worth(batch, overlong={"margin": 0.5, "budget": 16}) == [0] * 10


def test_a_length_that_nobody_knows_stops_with_the_way_out() -> None:
    with pytest.raises(TrainingStopped, match=r"set algorithm.overlong.budget"):
        worth([sample("a", budget=0)], overlong={})


# Denominators


def denominator(
    samples: list[Sample], mean: str, indices: list[int] | None = None, **more: object
) -> float:
    """The units of a mini-batch, summed as the trainer's micro-batches sum them."""
    algorithm = Algorithm.model_validate({"aggregation": {"kind": mean, **more}})
    batch = RlBatch.of(samples, algorithm)
    targets = batch.targets(algorithm, None, None)
    chosen = np.array(list(range(len(samples))) if indices is None else indices)
    return float(batch.objective(algorithm, HERE, targets, chosen).units.sum())


def test_units_are_those_of_the_mini_batch() -> None:
    batch = [sample("a", trained=1), sample("a", trained=2), sample("b", trained=4)]
    assert denominator(batch, "token_mean") == 7
    assert denominator(batch, "token_mean", [0, 2]) == 5
    assert denominator(batch, "sequence_mean") == 2
    assert denominator(batch, "rollout_mean") == 2
    assert denominator(batch, "constant") == 2
    assert denominator(batch, "rollout_mean", [2]) == 1


def test_the_constant_is_the_token_budget_unless_it_is_written() -> None:
    batch = RlBatch.of([sample("a", budget=16)], Algorithm())
    for written, wanted in ((None, 1 / 16), (4, 1 / 4)):
        algorithm = Algorithm(aggregation={"kind": "constant", "length": written})
        targets = batch.targets(algorithm, None, None)
        shares = batch.objective(algorithm, HERE, targets, np.array([0])).shares
        assert shares.tolist() == [wanted]


def test_the_samples_of_a_rollout_share_a_mini_batch() -> None:
    names = [f"r{i // 3}" for i in range(30)]
    batch = RlBatch.of([sample(name) for name in names], Algorithm())
    parts = list(batch.mini_batches(4, seed=1, step=2))
    assert sorted(np.concatenate(parts).tolist()) == list(range(30))
    assert len(parts) == 4
    for part in parts:
        inside = {names[i] for i in part.tolist()}
        assert sum(name in inside for name in names) == len(part)


def test_mini_batches_of_lone_samples_are_a_shuffle_by_seed_and_step() -> None:
    batch = RlBatch.of([sample(f"r{i}") for i in range(10)], Algorithm())
    order = np.random.default_rng([7, 3]).permutation(10)
    got = [part.tolist() for part in batch.mini_batches(3, seed=7, step=3)]
    assert got == [part.tolist() for part in np.array_split(order, 3)]
    assert len(list(batch.mini_batches(99, seed=7, step=3))) == 10


# Old logprobs, corrections, KL


def test_without_a_trainers_pass_the_engines_logprobs_are_the_old_ones() -> None:
    batch = RlBatch.of([sample("a"), sample("b")], Algorithm())
    targets = batch.targets(Algorithm(), None, None)
    assert targets.old_logprobs is batch.engine_logprobs
    assert targets.weights is None


def test_a_correction_weighs_the_trainers_against_the_engines() -> None:
    algorithm = Algorithm(
        old_logprobs="trainer",
        correction={"weight": {"high": None}, "reject": [{"kind": "ratio", "high": 2.5}]},
    )
    batch = RlBatch.of([sample("a"), sample("b")], algorithm)
    old = batch.engine_logprobs.copy()
    old[batch.trained()] += np.log([1, 2, 3, 0.75]).astype(np.float32)
    targets = batch.targets(algorithm, old, None)
    assert targets.weights is not None
    assert targets.weights[batch.trained()].tolist() == pytest.approx([1, 2, 0, 0.75])
    assert targets.metrics["rejected_share"] == pytest.approx(0.25)


def test_a_kl_in_the_reward_is_no_term_of_the_loss() -> None:
    batch = RlBatch.of([sample("a", 1), sample("b", 0)], Algorithm())
    reference = batch.engine_logprobs - 0.5
    kl = {"coef": 0.1, "estimator": "k1", "place": "reward"}
    algorithm = Algorithm(advantage={"kind": "reinforce++-baseline", "whiten": False}, kl=kl)
    targets = batch.targets(algorithm, None, reference)
    assert targets.reference is None
    got = targets.advantages[batch.trained()].tolist()
    assert got == pytest.approx([0.45, 0.45, -0.55, -0.55])
    algorithm = Algorithm(kl={"coef": 0.1})
    assert batch.targets(algorithm, None, reference).reference is reference


# With a critic


def with_observation(rollout: str, reward: float) -> Sample:
    """Two prompt tokens, two trained ones, an observation, one more trained one, a last one that
    the environment wrote."""
    made = sample(rollout, reward, trained=5)
    made.loss_mask = np.array([0, 0, 1, 1, 0, 1, 0], np.bool_)
    return made


GAE = {"kind": "gae", "lam": 0.5, "whiten": False}


def test_values_of_the_flat_tokens_reach_the_advantage_and_the_returns() -> None:
    # A rollout without trained tokens stands before: places in the batch are not those of samples.
    samples = [sample("z", trained=0), sample("a", 0), with_observation("b", 1)]
    algorithm = Algorithm.model_validate({"advantage": GAE})
    batch = RlBatch.of(samples, algorithm)
    values = np.zeros(4 + 7, np.float32)
    values[[2, 3]] = 0.5, 0.25
    values[[4 + 2, 4 + 3, 4 + 4, 4 + 5]] = 0.1, 0.2, 5.0, 0.6
    targets = batch.targets(algorithm, None, None, values)
    # a: d = -0.25, -0.25; A = -0.375, -0.25. b: as if the observation were not there.
    wanted = [-0.375, -0.25, 0.4, 0.6, 0.4]
    assert targets.advantages[batch.trained()].tolist() == pytest.approx(wanted)
    returns = batch.returns(algorithm, values, None)
    assert returns[batch.trained()].tolist() == pytest.approx([0, 0, 1, 1, 1])
    assert batch.valued(algorithm) is batch.learned


def test_the_critic_of_a_custom_advantage_learns_the_rewards_that_follow() -> None:
    custom = {"kind": "custom", "path": "mine:advantage", "needs": ["critic"]}
    algorithm = Algorithm.model_validate({"advantage": custom})
    batch = RlBatch.of([sample("a", 0), with_observation("b", 1)], algorithm)
    values = np.full(4 + 7, 0.3, np.float32)
    returns = batch.returns(algorithm, values, None)
    assert returns[batch.trained()].tolist() == pytest.approx([0, 0, 1, 1, 1])
    assert batch.valued(algorithm) is batch.learned


def test_an_algorithm_without_a_critic_has_no_returns() -> None:
    batch = RlBatch.of([sample("a", 0)], Algorithm())
    with pytest.raises(ValueError, match="advantage group needs no critic"):
        batch.returns(Algorithm(), np.zeros(4, np.float32), None)


def test_a_custom_advantage_reads_the_reference_that_it_needs(monkeypatch) -> None:
    seen: list[object] = []

    def advantage(tokens):
        seen.append(tokens.reference_logprobs_R)
        return tokens.logprobs_R.detach()

    monkeypatch.setattr("engines.algorithms.parts.resolve", lambda *_: advantage)
    custom = {"kind": "custom", "path": "mine:advantage", "needs": ["reference"]}
    algorithm = Algorithm.model_validate({"advantage": custom})
    batch = RlBatch.of([sample("a", 0)], algorithm)
    targets = batch.targets(algorithm, None, np.arange(4, dtype=np.float32))
    assert [t.tolist() for t in seen] == [[2.0, 3.0]]
    assert targets.reference is None  # it is no term of the loss


def test_observations_that_are_steps_need_values_between_the_trained_tokens() -> None:
    algorithm = Algorithm.model_validate({"advantage": {**GAE, "skip_observations": False}})
    batch = RlBatch.of([sample("a", 0), with_observation("b", 1)], algorithm)
    wanted = [0, 0, 1, 1, *[0, 0, 1, 1, 1, 1, 0]]
    assert batch.valued(algorithm).trained.astype(int).tolist() == wanted
    values = np.zeros(4 + 7, np.float32)
    values[[4 + 2, 4 + 3, 4 + 4, 4 + 5]] = 0.1, 0.2, 5.0, 0.6
    got = batch.targets(algorithm, None, None, values).advantages[batch.trained()]
    assert got.tolist() == pytest.approx([0, 0, 1.45, 2.7, 0.4])


def test_the_critic_learns_the_rewards_that_the_policy_hears() -> None:
    kl = {"coef": 0.1, "estimator": "k1", "place": "reward"}
    algorithm = Algorithm.model_validate({"advantage": GAE, "kl": kl})
    batch = RlBatch.of([sample("a", 1)], algorithm)
    rewards = batch.kl_rewards(algorithm, None, batch.engine_logprobs - 0.5)
    assert rewards[batch.trained()].tolist() == pytest.approx([-0.05, -0.05])
    values = np.zeros(4, np.float32)
    # Rewards -0.05, 0.95: returns 0.9, 0.95; d = r, so A = -0.05 + 0.475, 0.95.
    returns = batch.returns(algorithm, values, rewards)
    assert returns[batch.trained()].tolist() == pytest.approx([0.9, 0.95])
    targets = batch.targets(algorithm, None, None, values, rewards)
    assert targets.advantages[batch.trained()].tolist() == pytest.approx([0.425, 0.95])


# Teachers


def test_a_teacher_is_worth_its_logprob_less_the_students_to_its_own_samples() -> None:
    # Student -1 everywhere. Sample a of teacher 0, b of teacher 1; c failed and is left out.
    batch = [sample("a", 9), sample("b", trained=1), sample("c", status=Status.FAILED)]
    nan = float("nan")
    scores = TeacherScores(
        ("x", "y"),
        torch.tensor([[-0.5, -9.0, nan], [nan, nan, -3.0]], dtype=torch.float64),
        torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64),
    )
    algorithm = Algorithm.model_validate(
        {"preset": "opd", "old_logprobs": "engine", "correction": {"weight": None, "reject": []}}
    )
    made = RlBatch.of(batch, algorithm)
    targets = made.targets(algorithm, None, None, teachers=scores)
    # The reward of 9 plays no part; -8 is clipped to -5.
    assert targets.advantages[made.trained()].tolist() == [0.5, -5.0, -2.0]
    # Not the clipped gap: (-0.5 + 8 + 2) / 3, (-0.5 + 8) / 2, 2.
    assert targets.metrics == {
        "teacher_kl": pytest.approx(9.5 / 3), "teacher_kl_x": 3.75, "teacher_kl_y": 2.0
    }  # fmt: skip


def test_a_teacher_without_samples_in_a_step_has_no_metric() -> None:
    scores = TeacherScores(
        ("x", "y"),
        torch.tensor([[-2.0], [float("nan")]], dtype=torch.float64),
        torch.tensor([[1.0, 0.0]], dtype=torch.float64),
    )
    found = scores.metrics(torch.tensor([-1.0], dtype=torch.float64))
    assert found == {"teacher_kl": 1.0, "teacher_kl_x": 1.0}
    alone = TeacherScores(("x",), scores.logprobs_KR[:1], scores.weights_NK[:, :1])
    assert alone.metrics(torch.tensor([-1.0], dtype=torch.float64)) == {"teacher_kl": 1.0}
