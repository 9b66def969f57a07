"""From samples to pairs: which rollouts a preference loss compares, and what is said of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from engines.algorithms.combinations import refusals
from engines.algorithms.losses import PairLoss
from engines.algorithms.spec import Algorithm
from engines.megatron.rl.rl_batch import RlBatch
from engines.megatron.rl.sample_parts import NoPairsError, pair_metrics
from engines.megatron.rl.trainer import train_on
from engines.step_inputs import StepInputs
from engines.types import Group, Problem, Status
from tests.unit.engines.megatron.test_rl_batch import sample

pytestmark = pytest.mark.unit

PAIRS = {"preset": "online-dpo"}


def test_only_the_best_and_the_worst_rollout_of_a_group_are_in_the_step() -> None:
    flat = [sample("e", 1.0, group="flat"), sample("f", 1.0, group="flat")]
    made = [sample("a", 0.2), *flat, sample("b", 1.0, trained=3), sample("c"), sample("d", 1.0)]
    made += [sample("h", 0.0, group="k"), sample("i", 0.5, group="k"), sample("i", 0.5, group="k")]
    algorithm = Algorithm.model_validate(PAIRS)
    batch = RlBatch.of(made, algorithm)
    assert [s.rollout_id for s in batch.samples] == ["b", "c", "i", "i", "h"]
    assert batch.pairs == [2, 3]
    assert batch.learned.comparison.tolist() == [0, 0, 1, 1, 1]
    wanted = [1.0] * 3 + [-1.0] * 2 + [1.0] * 4 + [-1.0] * 2
    whole = batch.targets(algorithm, None, None).advantages
    assert whole[batch.trained()].tolist() == wanted
    own = batch.targets(algorithm, None, None, own=[0, 1]).advantages
    assert own[batch.trained()].tolist() == [*wanted[:5], *[0.0] * 6]
    parts = [sorted(part.tolist()) for part in batch.mini_batches(4, seed=0, step=0)]
    assert sorted(parts) == [[0, 1], [2, 3, 4]]


def test_a_step_whose_groups_have_no_pair_is_skipped() -> None:
    made = [sample("e", 1.0), sample("f", 1.0)]
    trainer: Any = SimpleNamespace()
    assert train_on(trainer, StepInputs(made, Algorithm.model_validate(PAIRS))).metrics == {}


def test_what_the_policy_says_of_its_pairs() -> None:
    """Log ratios: 3 - 2 of the first pair, 2 x -1 - 2 x 1 of the second one."""
    made = [sample("a", 1.0, trained=3), sample("b", 0.0)]
    made += [sample("c", 0.0, group="k"), sample("d", 1.0, group="k"), sample("e", group="flat")]
    algorithm = Algorithm.model_validate(PAIRS)
    assert isinstance(algorithm.loss, PairLoss)
    batch = RlBatch.of(made, algorithm)
    assert [s.rollout_id for s in batch.samples] == ["a", "b", "d", "c"]
    now = np.zeros(batch.learned.num_tokens, np.float32)
    reference = np.where(np.repeat([True, True, False, True], batch.learned.lengths), -1, 1)
    found = pair_metrics(batch, algorithm.loss, now, reference.astype(np.float32), np.arange(4), 3)
    assert found == {
        "pairs": 2, "groups_without_pair": 1, "pair_accuracy": 0.5, "pair_margin": (1 - 4) / 2,
    }  # fmt: skip


def test_the_penalty_for_length_counts_and_a_masked_rollout_is_in_no_pair() -> None:
    made = [sample("a", 1.0, trained=8), sample("b", 0.9, status=Status.TRUNCATED)]
    made.append(sample("c", 0.1))
    long = Algorithm.model_validate({**PAIRS, "overlong": {}})
    assert [s.rollout_id for s in RlBatch.of(made, long).samples] == ["b", "a"]
    masked = Algorithm.model_validate({**PAIRS, "truncated": "mask"})
    assert [s.rollout_id for s in RlBatch.of(made, masked).samples] == ["a", "c"]
    all_broken = [BROKEN, sample("n", trained=8, status=Status.MALFORMED)]
    for alike in (made[1:2], [sample("a", 0.1 + 0.2), sample("b", 0.3)], all_broken):
        with pytest.raises(NoPairsError):
            RlBatch.of(alike, long)


BROKEN = sample("m", status=Status.MALFORMED)


@pytest.mark.parametrize(
    ("rewards", "compared"),
    [
        ([-0.5, -0.25], ["-0.25", "-0.5"]),
        ([-0.5, 0.25], ["0.25", "-0.5"]),
        ([0.5, 0.25], ["0.5", "m"]),
        ([0.0, 0.25], ["0.25", "0.0"]),
    ],
)
def test_a_rollout_that_broke_a_protocol_is_never_the_better_one(
    rewards: list[float], compared: list[str]
) -> None:
    made = [BROKEN, *(sample(f"{reward}", reward) for reward in rewards)]
    algorithm = Algorithm.model_validate(PAIRS)
    batch = RlBatch.of(made, algorithm)
    assert [s.rollout_id for s in batch.samples] == compared
    worth = batch.targets(algorithm, None, None).advantages
    assert worth[batch.trained()].tolist() == [1.0, 1.0, -1.0, -1.0]
    with pytest.raises(NoPairsError):
        RlBatch.of(made[:2] if rewards[0] <= 0 else [BROKEN, BROKEN], algorithm)


@pytest.mark.parametrize(
    ("rewards", "has_signal"),
    [([-0.5, -0.5], False), ([-0.5, -0.25], True), ([0.5, 0.5], True), ([0.0], False), ([], False)],
)
def test_a_filter_sees_the_signal_that_advantages_have(
    rewards: list[float], has_signal: bool
) -> None:
    """Those that broke a protocol have 0, and count at most as the least of their group."""
    made = [BROKEN, sample("n", status=Status.MALFORMED)]
    made += [sample(f"r{n}", reward) for n, reward in enumerate(rewards)]
    assert Group(Problem("p", "d", ()), made).has_signal == has_signal
    batch = RlBatch.of(made, Algorithm())
    assert batch.targets(Algorithm(), None, None).advantages.any() == has_signal


def test_which_rollout_is_better_follows_from_the_whole_group() -> None:
    """The broken rollout counts -0.9, as the masked one. Beside the pair's other one alone it would
    count -0.2 and be equal, so that both would be the better ones."""
    made = [sample("b", -0.2, trained=2), BROKEN]
    made.append(sample("t", -0.9, status=Status.TRUNCATED))
    algorithm = Algorithm.model_validate({**PAIRS, "truncated": "mask"})
    batch = RlBatch.of(made, algorithm)
    assert [s.rollout_id for s in batch.samples] == ["b", "m"]
    for own in (None, [0, 1]):
        worth = batch.targets(algorithm, None, None, own=own).advantages
        assert worth[batch.trained()].tolist() == [1.0, 1.0, -1.0, -1.0]


def test_ipo_says_which_rollout_is_better_as_it_compares_them() -> None:
    """Log ratios -3 of 3 tokens and -2 of 1: by their sums the second is better, a token the
    first."""
    made = [sample("a", 1.0, trained=3), sample("b", 0.0, trained=1)]
    settings = {"advantage": "pairs", "loss": "ipo", "aggregation": "rollout_mean"}
    for loss, accuracy in (({"kind": "ipo"}, 1), ({"kind": "ipo", "length_normalised": False}, 0)):
        algorithm = Algorithm.model_validate({**settings, "loss": loss})
        assert isinstance(algorithm.loss, PairLoss)
        batch = RlBatch.of(made, algorithm)
        now = np.where(np.repeat([True, False], batch.learned.lengths), -1, -2)
        found = pair_metrics(batch, algorithm.loss, now.astype(np.float32), None, np.arange(2), 1)
        assert (found["pair_accuracy"], found["pair_margin"]) == (accuracy, -1)


def test_a_loss_of_pairs_needs_a_reference_unless_it_says_otherwise() -> None:
    assert Algorithm.model_validate(PAIRS).needs == {"spread", "reference"}
    free = Algorithm.model_validate({**PAIRS, "loss": {"reference_free": True}})
    assert free.needs == {"spread"}
    for place, faults in (("loss", []), ("reward", ["kl.place"])):
        held = {"loss": {"reference_free": True}, "kl": {"coef": 0.1, "place": place}}
        said = refusals(Algorithm.model_validate({**PAIRS, **held}), 2)
        assert [line.partition(":")[0] for line in said] == faults
