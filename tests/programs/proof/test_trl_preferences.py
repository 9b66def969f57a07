"""Losses on preferences beside TRL's own code, on the same logprobs."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter

from engines.algorithms.preference_losses import Answers, Compared, PreferenceLoss, loss_function

pytestmark = [
    pytest.mark.unit,
    pytest.mark.skipif("TRIBUTARY_TEST_TRL" not in os.environ, reason="`make proof` runs it"),
]
"""importing TRL's trainers takes longer than all other tests of the losses"""


def loss_of(written: Any) -> PreferenceLoss:
    return TypeAdapter[PreferenceLoss](PreferenceLoss).validate_python(written)


class _Gathers:
    """As much of accelerate as TRL's losses ask for, of one process."""

    device = torch.device("cpu")

    def gather(self, value: Any) -> Any:
        return value

    gather_for_metrics = gather


def _model_saying(per_token: torch.Tensor) -> Callable[..., Any]:
    """A model of which only these logprobs are read."""
    zeros = torch.zeros_like(per_token)
    said = SimpleNamespace(
        log_probs=per_token, entropy=zeros, mean_logits=zeros, is_top1=zeros.bool()
    )
    return lambda **_: said


def _trl_self(**settings: Any) -> Any:
    metrics = {"train": defaultdict(list)}
    return SimpleNamespace(
        accelerator=_Gathers(), model=SimpleNamespace(training=True), aux_loss_enabled=False,
        precompute_ref_logps=True, _metrics=metrics, _total_train_tokens=0, _tp_size=1, **settings,
    )  # fmt: skip


def _trl_batch(tokens: list[int]) -> tuple[torch.Tensor, dict[str, Any]]:
    """Logprobs of each answer's tokens, and TRL's inputs: a prompt of one token, then the
    answer."""
    torch.manual_seed(0)
    mask = torch.arange(max(tokens) + 1)[None] <= torch.tensor(tokens)[:, None]
    mask[:, 0] = False
    per_token = -torch.rand(len(tokens), max(tokens)).double() * mask[:, 1:]
    ids = torch.ones_like(mask, dtype=torch.long)
    return per_token, {
        "input_ids": ids, "attention_mask": ids, "completion_mask": mask.long(),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("trl_kind", "written"),
    [
        ("sigmoid", {"beta": 0.3}),
        ("sigmoid_norm", {"beta": 0.3, "length_normalised": True}),
        ("ipo", {"kind": "ipo", "beta": 0.3}),
    ],
)
def test_pairs_with_a_reference_as_trl_has_them(trl_kind: str, written: Any) -> None:
    from trl import DPOTrainer

    tokens, reference = [5, 3, 4, 6], torch.tensor([-2.0, -1.0, -2.5, -4.0]).double()
    per_token, inputs = _trl_batch(tokens)  # the better ones first, then the worse
    inputs |= {"ref_chosen_logps": reference[:2], "ref_rejected_logps": reference[2:]}
    trainer = _trl_self(
        ld_alpha=None, f_divergence_type="reverse_kl", beta=0.3, loss_types=[trl_kind],
        loss_weights=[1.0], label_smoothing=0.0, use_weighting=False,
    )  # fmt: skip
    theirs = DPOTrainer._compute_loss(trainer, _model_saying(per_token), inputs, False)
    in_turn = torch.tensor([0, 2, 1, 3])
    ours = loss_function(loss_of(written))(
        Answers(
            per_token.sum(1)[in_turn],
            reference[in_turn],
            torch.tensor(tokens).double()[in_turn],
            torch.tensor([True, False] * 2),
        )
    )
    assert float(ours.losses_P.mean()) == pytest.approx(float(theirs), abs=1e-6)


def test_verdicts_as_trl_has_them() -> None:
    from trl import KTOTrainer

    tokens, reference = [5, 3, 4], torch.tensor([-2.0, -1.0, -2.5]).double()
    others, others_reference = torch.tensor([-1.0, -2.0, -0.5]), torch.tensor([-1.5, -2.2, -0.6])
    per_token, inputs = _trl_batch(tokens)
    labels = torch.tensor([True, False, True])
    inputs |= {"label": labels, "ref_logps": reference, "ref_KL_logps": others_reference}
    trainer = _trl_self(
        beta=0.3, calculate_KL=True, loss_type="kto", desirable_weight=1.5, undesirable_weight=0.5,
        _compute_kl_logps=lambda *_: others,
    )  # fmt: skip
    theirs = KTOTrainer._compute_loss(trainer, _model_saying(per_token), inputs, False)
    baseline = max(0.0, float((others - others_reference).mean()))
    kto = loss_of({"kind": "kto", "beta": 0.3, "good_weight": 1.5, "bad_weight": 0.5})
    counts = torch.tensor(tokens).double()
    ours = loss_function(kto)(Answers(per_token.sum(1), reference, counts, labels, baseline))
    assert baseline > 0
    assert float(ours.losses_P.mean()) == pytest.approx(float(theirs), abs=1e-6)


def test_pairs_without_a_reference_as_trl_has_them() -> None:
    from trl.experimental.cpo import CPOTrainer
    from trl.experimental.orpo import ORPOTrainer

    chosen, rejected = torch.tensor([-1.0, -0.4]).double(), torch.tensor([-1.5, -0.3]).double()
    means = torch.stack([chosen, rejected], 1).ravel()
    ones = torch.ones_like(means)
    given = Answers(means, torch.zeros_like(means), ones, torch.tensor([True, False] * 2))

    def ours(written: Any) -> Compared:
        return loss_function(loss_of(written))(given)

    simpo = SimpleNamespace(
        alpha=0.0, beta=2.5, simpo_gamma=1.4, loss_type="simpo", label_smoothing=0.0,
        accelerator=_Gathers(),
    )  # fmt: skip
    theirs, *_ = CPOTrainer.cpo_loss(simpo, chosen, rejected)
    mine = ours({"kind": "simpo", "beta": 2.5, "gamma": 1.4}).losses_P
    assert mine.tolist() == pytest.approx(theirs.tolist(), abs=1e-9)
    orpo = SimpleNamespace(beta=0.25, accelerator=_Gathers())
    ratio, *_ = ORPOTrainer.odds_ratio_loss(orpo, chosen, rejected)
    mine = ours({"kind": "orpo", "weight": 0.25}).losses_P
    assert mine.tolist() == pytest.approx((-chosen - ratio).tolist(), abs=1e-6)
