"""Each estimator agrees with the same one written anew, on random batches."""

from __future__ import annotations

import math
import random
from typing import get_args

import numpy as np
import pytest
import torch

from engines.algorithms.advantages import advantages, length_adaptive_lambda
from engines.algorithms.aggregation import shares
from engines.algorithms.corrections import (
    Band,
    Correction,
    Level,
    Veto,
    Weight,
    corrected,
    effective_share,
    mismatch_metrics,
    off_policy_sequences,
)
from engines.algorithms.losses import (
    Estimator,
    kl_estimate,
    overlong_penalty,
    policy_loss,
    supervised_loss,
    unbiased_kl,
    value_loss,
)
from engines.algorithms.statistics import whitened
from tests.programs.proof import reference
from tests.programs.proof.cases import (
    advantage_cases,
    doubles,
    flat,
    loss_cases,
    micro,
    replies,
    step_of,
    unrolled,
)

pytestmark = pytest.mark.unit

SEEDS = range(4)
LEVELS = get_args(Level)
MEANS = ("token_mean", "sequence_mean", "rollout_mean", "constant")


def near(wanted: object) -> object:
    return pytest.approx(wanted, rel=1e-9, abs=1e-9)


@pytest.mark.proof("{row}", "reference")
@pytest.mark.parametrize(("row", "spec", "anew"), advantage_cases())
def test_advantages(row, spec, anew) -> None:
    for seed in SEEDS:
        made = replies(random.Random(seed))
        wanted = anew(made)
        if spec.whiten:
            wanted = reference.whiten(wanted)
        assert advantages(spec, step_of(made)).tolist() == near(unrolled(wanted))


@pytest.mark.proof("{row}", "reference")
@pytest.mark.parametrize(("row", "spec", "anew"), loss_cases())
def test_losses(row, spec, anew) -> None:
    for seed in SEEDS:
        made = micro(random.Random(seed))
        rows = zip(made.new, made.old, made.advantages, strict=True)
        wanted = [anew(new, old, a, held=new) for new, old, a in rows]
        assert policy_loss(spec)(made.inputs()).loss_R.tolist() == near(unrolled(wanted))


@pytest.mark.proof("kl {name}", "reference")
@pytest.mark.proof("kl unbiased", "reference")
@pytest.mark.parametrize("name", get_args(Estimator))
def test_kl(name) -> None:
    made = micro(random.Random(3))
    new, old, base = flat(made.new), flat(made.old), flat(made.new).roll(1)
    rows = list(zip(new.tolist(), old.tolist(), base.tolist(), strict=True))
    assert kl_estimate(new, base, name).tolist() == near(
        [reference.kl(n, b, name) for n, _, b in rows]
    )
    assert unbiased_kl(new, old, base, name).tolist() == near(
        [reference.unbiased_kl(n, o, b, name) for n, o, b in rows]
    )


def parts(seed: int) -> tuple[list[list[float]], list[list[float]], torch.Tensor, int]:
    """(trainer's, engine's logprobs by sequence, sequence of each token, how many sequences)."""
    made = micro(random.Random(seed))
    return made.new, made.old, made.inputs().segment_R, len(made.new)


@pytest.mark.proof("weight {level}", "reference")
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize(("low", "high"), [(0.0, 2.0), (0.8, 1.3), (0.0, None)])
@pytest.mark.parametrize("level", LEVELS)
def test_weights(level, low: float, high: float | None, normalize: bool) -> None:
    spec = Weight(level=level, low=low, high=high, normalize=normalize)
    for seed in SEEDS:
        trainer, engine, sequence, num = parts(seed)
        logs = [
            [a - b for a, b in zip(t, e, strict=True)] for t, e in zip(trainer, engine, strict=True)
        ]
        made = corrected(Correction(weight=spec), flat(trainer), flat(engine), sequence, num)
        wanted = unrolled(reference.weights(logs, level, low, high, normalize=normalize))
        assert made.weights_R.tolist() == near(wanted)
        bare = unrolled(reference.ratios(logs, level))
        out = sum(not low <= r <= (math.inf if high is None else high) for r in bare)
        assert made.metrics == near(
            {
                "weight_mean": sum(wanted) / len(wanted),
                "weight_max": max(wanted),
                "weight_truncated_share": out / len(bare),
            }
        )


@pytest.mark.proof("reject ratio", "reference")
@pytest.mark.proof("reject veto", "reference")
@pytest.mark.parametrize("level", LEVELS)
def test_rejections(level) -> None:
    band = Band(kind="ratio", level=level, low=0.6, high=1.4)
    veto = Veto(kind="veto", floor=0.5)
    for seed in SEEDS:
        trainer, engine, sequence, num = parts(seed)
        logs = [
            [a - b for a, b in zip(t, e, strict=True)] for t, e in zip(trainer, engine, strict=True)
        ]
        inside = unrolled(reference.in_band(logs, level, 0.6, 1.4))
        allowed = unrolled(reference.not_vetoed(logs, 0.5))
        for reject, wanted in (
            ([band], inside),
            ([veto], allowed),
            ([band, veto], [a and b for a, b in zip(inside, allowed, strict=True)]),
        ):
            spec = Correction(reject=reject)
            made = corrected(spec, flat(trainer), flat(engine), sequence, num)
            assert made.weights_R.tolist() == [float(w) for w in wanted]
            assert made.metrics["rejected_share"] == near(1 - sum(wanted) / len(wanted))
        assert 0 < sum(inside) < len(inside)


@pytest.mark.proof("reject opsm", "reference")
def test_off_policy_masking() -> None:
    masked = 0
    for seed in SEEDS:
        made = micro(random.Random(seed))
        engine = [[x + 0.1 for x in row] for row in made.old]
        got = off_policy_sequences(made.inputs(), flat(engine), delta=0.1)
        wanted = unrolled(reference.drifted(made.new, engine, made.advantages, 0.1))
        assert got.tolist() == wanted
        masked += sum(wanted)
    assert masked > 0


@pytest.mark.proof("aggregation {mean}", "reference")
@pytest.mark.parametrize("mean", MEANS)
def test_means(mean) -> None:
    for seed in SEEDS:
        losses = micro(random.Random(seed), num=11).new
        rollouts = [random.Random(seed + i).randrange(5) for i in range(11)]
        lengths = [8 + 4 * (r % 3) for r in rollouts]
        made = shares(
            mean,
            torch.tensor([len(row) for row in losses]),
            torch.tensor(rollouts),
            torch.tensor(lengths),
        )
        sums = doubles([sum(row) for row in losses])
        got = float((made.weight_N * sums).sum() / made.units_N.sum())
        assert got == near(reference.mean(mean, losses, rollouts, [float(x) for x in lengths]))


@pytest.mark.proof("whitening", "reference")
def test_whitening() -> None:
    for seed in SEEDS:
        rows = micro(random.Random(seed)).new
        assert whitened(flat(rows)).tolist() == near(unrolled(reference.whiten(rows)))


@pytest.mark.proof("overlong", "reference")
def test_overlong() -> None:
    draw = random.Random(0)
    lengths = [draw.randrange(1, 150) for _ in range(60)]
    budgets = [draw.choice([40, 100, 128]) for _ in lengths]
    for margin in (0.1, 0.35, 1.0):
        got = overlong_penalty(torch.tensor(lengths), torch.tensor(budgets), margin=margin)
        wanted = [reference.overlong(n, b, margin) for n, b in zip(lengths, budgets, strict=True)]
        assert got.tolist() == pytest.approx(wanted, abs=1e-15)


@pytest.mark.proof("lambda by length", "reference")
def test_lambda_by_length() -> None:
    lengths = torch.arange(0, 30)
    for alpha in (0.05, 0.4, 1.5):
        wanted = [max(0.0, 1 - 1 / (alpha * max(n, 1))) for n in lengths.tolist()]
        assert length_adaptive_lambda(lengths, alpha).tolist() == near(wanted)


@pytest.mark.proof("value loss", "reference")
@pytest.mark.parametrize("bound", [0.2, None])
def test_value_loss(bound: float | None) -> None:
    made = micro(random.Random(5), num=20)
    new, old, targets = flat(made.new), flat(made.old), flat(made.old).roll(3)
    rows = list(zip(new.tolist(), old.tolist(), targets.tolist(), strict=True))
    loss, is_held = value_loss(new, old, targets, clip=bound)
    assert loss.tolist() == near([reference.value(*row, bound) for row in rows])
    plain = [0.5 * (n - t) ** 2 for n, _, t in rows]
    wanted = [a > b for a, b in zip(loss.tolist(), plain, strict=True)]
    assert is_held.tolist() == wanted


@pytest.mark.proof("supervised loss", "reference")
def test_supervised_loss() -> None:
    draw = random.Random(1)
    odds = [draw.uniform(0.01, 1) for _ in range(20)]
    got = supervised_loss(doubles(odds).log())
    assert got.tolist() == near([math.log(1 / p) for p in odds])


@pytest.mark.proof("mismatch metrics", "reference")
def test_mismatch() -> None:
    trainer, engine, _, _ = parts(2)
    logs = [a - b for a, b in zip(unrolled(trainer), unrolled(engine), strict=True)]
    lags = torch.arange(len(logs)) % 3
    got = mismatch_metrics(flat(trainer), flat(engine), lags)
    num, weights = len(logs), [math.exp(x) for x in logs]
    assert got["mismatch_mean"] == near(sum(map(abs, logs)) / num)
    assert got["mismatch_max"] == near(max(map(abs, logs)))
    assert got["mismatch_k1"] == near(-sum(logs) / num)
    k3 = [reference.kl(-x, 0.0, "k3") for x in logs]
    assert got["mismatch_k3"] == near(sum(k3) / num)
    share = sum(weights) ** 2 / (num * sum(w * w for w in weights))
    assert got["mismatch_ess"] == near(share)
    assert effective_share(doubles(weights)) == near(share)
    for name, q in (("p01", 0.01), ("p50", 0.5), ("p99", 0.99)):
        assert got[f"mismatch_ratio_{name}"] == near(float(np.quantile(weights, q)))
    for lag in range(3):
        mine = [x for i, x in enumerate(k3) if i % 3 == lag]
        assert got[f"lag{lag}_k3"] == near(sum(mine) / len(mine))
        assert got[f"lag{lag}_share"] == near(len(mine) / num)
    assert got["lag_mean"] == near(float(lags.double().mean()))
    assert got["lag_max"] == 2
