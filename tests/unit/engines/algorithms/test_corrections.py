"""Off-policy corrections and their metrics against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from engines.algorithms.corrections import (
    Band,
    Correction,
    Opsm,
    Veto,
    Weight,
    corrected,
    effective_share,
    importance_ratio,
    importance_weights,
    kept,
    mismatch_metrics,
    off_policy_sequences,
    quantiles,
)
from engines.algorithms.inputs import LossInputs

pytestmark = pytest.mark.unit

SEQUENCE = torch.tensor([0, 0, 1, 1, 1])


def logs(*ratios: float) -> Tensor:
    return torch.tensor(ratios, dtype=torch.float64).log()


LOG_RATIO = logs(2, 2, 0.5, 1, 4)


@pytest.mark.parametrize(
    ("level", "wanted"),
    [
        ("token", [2, 2, 0.5, 1, 4]),
        ("sequence", [4, 4, 2, 2, 2]),
        ("geometric", [2, 2, 2 ** (1 / 3), 2 ** (1 / 3), 2 ** (1 / 3)]),
    ],
)
@pytest.mark.proof("weight {level}", "hand", numbers=5)
def test_ratios_by_level(level, wanted: list[float]) -> None:
    assert importance_ratio(LOG_RATIO, SEQUENCE, 2, level).tolist() == pytest.approx(wanted)


def test_a_ratio_cannot_overflow() -> None:
    got = importance_ratio(torch.tensor([900.0]), torch.tensor([0]), 1, "sequence")
    assert got.tolist() == pytest.approx([math.exp(20)])


def run(spec: Correction, log_ratio: Tensor = LOG_RATIO) -> tuple[list[float], dict[str, float]]:
    made = corrected(spec, log_ratio - 1, torch.full_like(log_ratio, -1), SEQUENCE, 2)
    return made.weights_R.tolist(), made.metrics


@pytest.mark.proof("weight token", "hand", numbers=5)
def test_truncated_weights_by_hand() -> None:
    weights, metrics = run(Correction(weight=Weight(low=1.0, high=2.0)))
    assert weights == pytest.approx([2, 2, 1, 1, 2])
    # 0.5 and 4 were out of bounds.
    assert metrics["weight_truncated_share"] == pytest.approx(0.4)
    assert metrics["weight_mean"] == pytest.approx(1.6)
    assert metrics["weight_max"] == pytest.approx(2)


def test_token_weights_are_normalised_over_tokens() -> None:
    # Untruncated: 2 + 2 + 0.5 + 1 + 4 = 9.5, mean 1.9.
    weights, _ = run(Correction(weight=Weight(high=None, normalize=True)))
    assert weights == pytest.approx([w / 1.9 for w in (2, 2, 0.5, 1, 4)])


@pytest.mark.proof("weight sequence", "hand", numbers=5)
def test_sequence_weights_are_normalised_over_sequences() -> None:
    # Sequences weigh 4 and 2: mean 3, though the second has more tokens.
    weights, _ = run(Correction(weight=Weight(level="sequence", high=None, normalize=True)))
    assert weights == pytest.approx([4 / 3, 4 / 3, 2 / 3, 2 / 3, 2 / 3])


def test_normalising_nothing_is_nothing() -> None:
    empty = torch.zeros(0, dtype=torch.float64)
    got = importance_weights(empty, empty.long(), Weight(normalize=True))
    assert got.tolist() == []


@pytest.mark.proof("reject ratio", "hand", numbers=5)
def test_icepop_by_hand() -> None:
    # The ratio itself within [0.4, 2.5], else 0: 4 goes.
    spec = Correction(weight=Weight(high=None), reject=[Band(kind="ratio", low=0.4, high=2.5)])
    weights, metrics = run(spec)
    assert weights == pytest.approx([2, 2, 0.5, 1, 0])
    assert metrics["rejected_share"] == pytest.approx(0.2)


def test_rejection_alone_leaves_the_others_at_one() -> None:
    weights, metrics = run(Correction(reject=[Band(kind="ratio", level="sequence", high=3.0)]))
    # Sequence ratios 4 and 2.
    assert weights == [0, 0, 1, 1, 1]
    assert metrics == {"rejected_share": pytest.approx(0.4)}


def test_a_geometric_band_is_free_of_the_length() -> None:
    # Per-token ratios 2 and 1.26: the first sequence leaves a band of 1.5.
    weights, _ = run(Correction(reject=[Band(kind="ratio", level="geometric", high=1.5)]))
    assert weights == [0, 0, 1, 1, 1]


@pytest.mark.proof("reject veto", "hand", numbers=5)
def test_one_impossible_token_vetoes_its_sequence() -> None:
    weights, _ = run(Correction(reject=[Veto(kind="veto")]), logs(1, 1, 1, 1e-5, 1))
    assert weights == [1, 1, 0, 0, 0]


def test_what_is_kept_is_a_mask() -> None:
    assert kept([], LOG_RATIO, SEQUENCE, 2).dtype == torch.bool


def test_rejections_add_up() -> None:
    spec = Correction(
        reject=[Veto(kind="veto"), Band(kind="ratio", low=0.9, high=1.1), Opsm(kind="opsm")]
    )
    weights, _ = run(spec, logs(1, 2, 1, 1e-5, 1))
    assert weights == [1, 0, 0, 0, 0]


@pytest.mark.proof("reject opsm", "hand", numbers=6)
def test_off_policy_masking_by_hand() -> None:
    # Sequence 0 has drifted by (0.5 + 0.1) / 2 = 0.3 nats per token, sequence 1 by -0.1.
    engine = torch.tensor([-1.0, -1.0, -1.0])
    tokens = LossInputs(
        logprobs_R=torch.tensor([-1.5, -1.1, -0.9], requires_grad=True),
        old_logprobs_R=engine,
        advantages_R=torch.tensor([-1.0, 1.0, -1.0]),
        segment_R=torch.tensor([0, 0, 1]),
        num_trained_B=torch.tensor([2, 1]),
    )
    # Only the bad action of the drifted one.
    assert off_policy_sequences(tokens, engine, delta=0.2).tolist() == [True, False, False]
    assert off_policy_sequences(tokens, engine, delta=0.31).tolist() == [False] * 3


@pytest.mark.proof("mismatch metrics", "hand", numbers=4)
def test_effective_share_by_hand() -> None:
    assert effective_share(torch.tensor([1.0, 1, 4])) == pytest.approx(36 / 54)
    assert effective_share(torch.tensor([3.0, 3, 3])) == pytest.approx(1)
    assert effective_share(torch.tensor([1e300, 0], dtype=torch.float64)) == pytest.approx(0.5)
    assert effective_share(torch.zeros(2)) == 0


@pytest.mark.proof("mismatch metrics", "hand", numbers=3)
def test_quantiles_by_hand() -> None:
    # p50 of four lies between 2 and 4; p01 is 3% of the way from 1 to 2; p99 97% from 4 to 8.
    got = quantiles(torch.tensor([8.0, 1, 4, 2]))
    assert got == pytest.approx({"p01": 1.03, "p50": 3, "p99": 7.88})
    exact = quantiles(torch.tensor([8.0, 1, 4, 2], dtype=torch.float64))
    assert exact == pytest.approx({"p01": 1.03, "p50": 3, "p99": 7.88}, rel=1e-14)


@pytest.mark.proof("mismatch metrics", "hand", numbers=10)
def test_mismatch_metrics_by_hand() -> None:
    trainer, engine = logs(0.5, 0.25), logs(0.25, 0.25)
    got = mismatch_metrics(trainer, engine, torch.tensor([0, 3]))
    ln2 = math.log(2)
    assert got["mismatch_mean"] == pytest.approx(ln2 / 2)
    assert got["mismatch_max"] == pytest.approx(ln2)
    # KL(engine || trainer): mean of engine's - trainer's logprob.
    assert got["mismatch_k1"] == pytest.approx(-ln2 / 2)
    assert got["mismatch_k3"] == pytest.approx((2 - 1 - ln2) / 2)
    # Weights 2 and 1: 9 / (2 x 5).
    assert got["mismatch_ess"] == pytest.approx(0.9)
    assert got["mismatch_ratio_p50"] == pytest.approx(1.5)
    assert (got["lag_mean"], got["lag_max"]) == (1.5, 3)
    assert (got["lag0_share"], got["lag3_share"]) == (0.5, 0.5)
    assert got["lag0_k3"] == pytest.approx(2 - 1 - ln2)
    assert got["lag3_k3"] == pytest.approx(0)
    assert (got["lag0_k1"], got["lag3_k1"]) == (pytest.approx(-ln2), 0)
    assert (got["lag0_mean"], got["lag3_mean"]) == (pytest.approx(ln2), 0)


@pytest.mark.proof("mismatch metrics", "edge")
def test_only_a_batch_of_the_newest_version_has_no_metrics_by_lag() -> None:
    fresh = mismatch_metrics(logs(0.5), logs(0.5), torch.tensor([0]))
    assert [name for name in fresh if name.startswith("lag")] == ["lag_mean", "lag_max"]
    got = mismatch_metrics(logs(0.5), logs(0.25), torch.tensor([2]))
    assert got["lag_mean"] == 2
    assert (got["lag2_share"], got["lag2_k1"]) == (1, got["mismatch_k1"])
    assert got["lag2_k3"] == got["mismatch_k3"]
    assert mismatch_metrics(logs(), logs(), torch.tensor([])) == {}
