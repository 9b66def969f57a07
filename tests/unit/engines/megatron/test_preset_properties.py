"""What must hold of every preset: rollouts that only count, tokens far away, any order."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from engines.algorithms.inputs import LossInputs
from engines.algorithms.losses import policy_loss
from engines.algorithms.spec import PRESETS, Algorithm, Preset
from engines.megatron.rl.rl_batch import RlBatch
from engines.megatron.rl.rl_objective import RlTargets
from engines.megatron.rl.teachers import TeacherScores
from engines.types import Sample, Status
from tests.parts.sample_parts import sample_of

pytestmark = pytest.mark.unit

KL_REWARD = {"kl": {"coef": 0.1, "estimator": "k1", "place": "reward"}}
PLACES = [{}, KL_REWARD]
"""without a KL term, and with one among the rewards"""


def algorithm_of(preset: Preset, **written: Any) -> Algorithm:
    """The preset, not whitened, so that what one rollout changes of another shows."""
    kind = PRESETS[preset].get("advantage", {}).get("kind", "group")
    whiten = {} if kind in ("reinforce++", "pairs") else {"whiten": False}
    return Algorithm.model_validate({"preset": preset, "advantage": whiten, **written})


def rollouts() -> list[Sample]:
    """Two groups of four, of other lengths, rewards and logprobs; one of each ran out of budget."""
    draw = random.Random(3)
    made: list[Sample] = []
    for number in range(8):
        trained = draw.randrange(2, 7)
        made.append(
            sample_of(
                problem_id=f"p{number // 4}",
                domain="d",
                group_id=f"g{number // 4}",
                rollout_id=f"r{number}",
                sample_index=number % 4,
                tokens=[1, 2, *range(10, 10 + trained)],
                loss_mask=[0, 0] + [1] * trained,
                logprobs=[0.0, 0.0] + [-draw.uniform(0.1, 3) for _ in range(trained)],
                weight_versions=[-1, -1] + [0] * trained,
                status=Status.TRUNCATED if number % 4 == 1 else Status.COMPLETED,
                reward=draw.choice([0.0, 0.25, 1.0]) + 0.125 * (number % 4),
                token_budget=8,
            )
        )
    return made


def worth(samples: list[Sample], algorithm: Algorithm) -> tuple[RlTargets, RlBatch]:
    """The step's targets; trainer, reference, critic and teacher each say something else."""
    batch = RlBatch.of(samples, algorithm)
    engine = batch.engine_logprobs
    kept = torch.from_numpy(engine[batch.trained()]).double()
    heard = torch.ones(len(samples), 1, dtype=torch.float64)
    targets = batch.targets(
        algorithm,
        np.float32(0.9) * engine if algorithm.old_logprobs == "trainer" else None,
        np.float32(1.5) * engine,
        values=engine[: len(batch.learned.tokens)] / 8,
        teachers=TeacherScores(("d",), (0.5 * kept)[None], heard),
    )
    return targets, batch


def by_rollout(samples: list[Sample], algorithm: Algorithm) -> dict[str, list[float]]:
    targets, batch = worth(samples, algorithm)
    places = zip(batch.samples, batch.learned.starts, batch.learned.lengths, strict=False)
    return {s.rollout_id: targets.advantages[at : at + num].tolist() for s, at, num in places}


@pytest.mark.parametrize("preset", [p for p in PRESETS if p != "online-dpo"])  # it compares none
@pytest.mark.parametrize("written", PLACES)
def test_a_rollout_that_only_counts_counts_as_if_it_were_trained_on(
    preset: Preset, written: dict[str, Any]
) -> None:
    trained = by_rollout(rollouts(), algorithm_of(preset, **written))
    masked = by_rollout(rollouts(), algorithm_of(preset, **written, truncated="mask"))
    assert set(trained) - set(masked) == {"r1", "r5"}
    if preset == "reinforce++":  # its baseline is the mean of what is trained on
        return
    for rollout, advantages in masked.items():
        assert advantages == trained[rollout]


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("truncated", ["train", "mask"])
@pytest.mark.parametrize("written", PLACES)
def test_the_order_of_the_samples_changes_nothing(
    preset: Preset, truncated: str, written: dict[str, Any]
) -> None:
    algorithm = algorithm_of(preset, truncated=truncated, **written)
    samples = rollouts()
    wanted = by_rollout(samples, algorithm)
    random.Random(0).shuffle(samples)
    found = by_rollout(samples, algorithm)
    for rollout, advantages in wanted.items():
        assert found[rollout] == pytest.approx(advantages, abs=1e-6)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("written", [*PLACES, {"kl": {"coef": 0.1}}])
@pytest.mark.parametrize("said", [-100.0, -np.inf])
def test_an_engine_that_gave_a_token_no_probability_leaves_all_finite(
    preset: Preset, written: dict[str, Any], said: float
) -> None:
    samples = rollouts()
    samples[0].logprobs[3] = said
    algorithm = algorithm_of(preset, **written)
    targets, batch = worth(samples, algorithm)
    places = batch.trained()
    now = torch.full((len(places),), -0.5, requires_grad=True)
    num, reference = torch.from_numpy(batch.num_trained), targets.reference
    loss = policy_loss(algorithm.loss)(
        LossInputs(
            logprobs_R=now,
            old_logprobs_R=torch.from_numpy(targets.old_logprobs[places]),
            advantages_R=torch.from_numpy(targets.advantages[places]),
            segment_R=torch.arange(len(num)).repeat_interleave(num),
            num_trained_B=num,
            reference_R=None if reference is None else torch.from_numpy(reference[places]),
            pair_B=None if batch.pairs is None else torch.from_numpy(batch.learned.comparison),
        )
    ).loss_R
    if targets.weights is not None:
        loss = loss * torch.from_numpy(targets.weights[places])
    loss.sum().backward()
    assert np.isfinite(targets.advantages).all()
    assert now.grad is not None
    assert loss.isfinite().all()
    assert now.grad.isfinite().all()
    assert now.grad.any()
