"""Losses and their gradients agree with TRL's `GRPOTrainer`, where it has the same estimator.

TRL's own loss function runs on given logprobs; what stands for its trainer is a bag of settings.
"""

from __future__ import annotations

import random
import warnings
from collections import defaultdict
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from engines.algorithms.aggregation import Mean, shares
from engines.algorithms.corrections import off_policy_sequences
from engines.algorithms.inputs import LossInputs
from engines.algorithms.losses import (
    CispoLoss,
    ClipLoss,
    GspoLoss,
    Kl,
    Loss,
    kl_estimate,
    policy_loss,
    unbiased_kl,
)
from tests.programs.proof.cases import Micro, micro

pytestmark = pytest.mark.unit

BUDGET = 8
COEF = 0.3
DELTA = 0.1


@dataclass(frozen=True, slots=True)
class Case:
    rows: tuple[str, ...]
    """of the proof table"""
    loss: Loss
    mean: Mean
    trl: dict[str, Any]
    """settings of TRL's trainer, beside clip range and defaults"""
    kl: Kl = field(default_factory=Kl)
    opsm: bool = False


CLIP = ClipLoss(kind="clip", clip_low=0.2, clip_high=0.28)
DUAL = ClipLoss(kind="clip", clip_low=0.2, clip_high=0.28, dual_clip=1.5)
CASES = [
    Case(("loss clip", "aggregation sequence_mean"), CLIP, "sequence_mean", {"loss_type": "grpo"}),
    Case(("loss clip", "aggregation token_mean"), CLIP, "token_mean", {"loss_type": "dapo"}),
    Case(("loss clip", "aggregation constant"), CLIP, "constant", {"loss_type": "dr_grpo"}),
    Case(("loss clip",), DUAL, "token_mean", {"loss_type": "dapo", "delta": 1.5}),
    Case(
        ("loss gspo",),
        GspoLoss(kind="gspo", clip_low=0.1, clip_high=0.15),
        "sequence_mean",
        {"loss_type": "grpo", "importance_sampling_level": "sequence"},
    ),
    # Its `epsilon_high` is the largest weight itself.
    Case(
        ("loss cispo",),
        CispoLoss(kind="cispo", clip_low=1.0, clip_high=0.4),
        "token_mean",
        {"loss_type": "cispo", "epsilon_high": 1.4},
    ),
    Case(("kl k3",), CLIP, "token_mean", {"loss_type": "dapo", "beta": COEF}, Kl(coef=COEF)),
    Case(
        ("kl unbiased",),
        CLIP,
        "token_mean",
        {"loss_type": "dapo", "beta": COEF, "use_bias_correction_kl": True},
        Kl(coef=COEF, unbiased=True),
    ),
    Case(
        ("reject opsm",),
        CLIP,
        "token_mean",
        {"loss_type": "dapo", "off_policy_mask_threshold": DELTA},
        opsm=True,
    ),
]


@pytest.fixture(scope="module")
def trainer() -> Any:
    """The class of TRL's trainer."""
    pytest.importorskip("trl", reason="TRL is not installed: `make install`")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from trl import GRPOTrainer
    return GRPOTrainer


@pytest.mark.parametrize(
    ("row", "case"),
    [(row, case) for case in CASES for row in case.rows],
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value.trl.values())),
)
@pytest.mark.proof("{row}", "reference")
def test_loss_and_gradient_are_trls(row: str, case: Case, trainer: Any) -> None:
    for seed in range(3):
        made = micro(random.Random(seed))
        tokens = made.inputs()
        base_R = tokens.old_logprobs_R - 0.3
        ours = _ours(case, tokens, base_R)
        theirs, leaf_BT = _theirs(trainer, case, made, tokens, base_R)
        assert ours.item() == pytest.approx(theirs.item(), rel=1e-9, abs=1e-9), row
        (mine_R,) = torch.autograd.grad(ours, tokens.logprobs_R)
        (other_BT,) = torch.autograd.grad(theirs, leaf_BT)
        lengths = tokens.num_trained_B.tolist()
        other = [x for line, n in zip(other_BT.tolist(), lengths, strict=True) for x in line[:n]]
        assert mine_R.tolist() == pytest.approx(other, rel=1e-9, abs=1e-9), row
        assert max(map(abs, other)) > 1e-3


def _ours(case: Case, tokens: LossInputs, base_R: Tensor) -> Tensor:
    loss_R = policy_loss(case.loss)(tokens).loss_R
    if case.opsm:
        loss_R = loss_R * ~off_policy_sequences(tokens, tokens.old_logprobs_R, delta=DELTA)
    if case.kl.unbiased:
        loss_R = loss_R + COEF * unbiased_kl(
            tokens.logprobs_R, tokens.old_logprobs_R, base_R, case.kl.estimator
        )
    elif case.kl.coef:
        loss_R = loss_R + COEF * kl_estimate(tokens.logprobs_R, base_R, case.kl.estimator)
    num = len(tokens.num_trained_B)
    made = shares(case.mean, tokens.num_trained_B, torch.arange(num), torch.full((num,), BUDGET))
    return (loss_R * made.weight_N[tokens.segment_R]).sum() / made.units_N.sum()


def _theirs(
    trainer: Any, case: Case, made: Micro, tokens: LossInputs, base_R: Tensor
) -> tuple[Tensor, Tensor]:
    """(loss, its leaf): sequences padded to one length on the right."""
    lengths = tokens.num_trained_B.tolist()

    def padded(values_R: Tensor) -> Tensor:
        return torch.nn.utils.rnn.pad_sequence(values_R.split(lengths), batch_first=True)

    leaf_BT = padded(tokens.logprobs_R.detach()).requires_grad_()
    mask_BT = padded(torch.ones_like(base_R))
    ids = torch.zeros_like(mask_BT, dtype=torch.long)
    inputs = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": ids[:, :1],
        "completion_ids": ids,
        "completion_mask": mask_BT,
        "advantages": torch.tensor([row[0] for row in made.advantages], dtype=torch.float64),
        "old_per_token_logps": padded(tokens.old_logprobs_R),
        "ref_per_token_logps": padded(base_R),
        "num_items_in_batch": mask_BT.sum(),
    }
    settings = {**_defaults(case.loss), **case.trl}
    stand_in = SimpleNamespace(
        **settings,
        args=SimpleNamespace(**settings, steps_per_generation=1),
        model=SimpleNamespace(training=True),
        accelerator=SimpleNamespace(
            num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x
        ),
        current_gradient_accumulation_steps=1,
        get_off_policy_mask=trainer.get_off_policy_mask,
        _get_per_token_logps_and_entropies=lambda *_, **__: (leaf_BT, torch.zeros_like(leaf_BT), 0),
        _metrics={"train": defaultdict(list)},
        _entropy_bonus_enabled=False,
    )
    return trainer._compute_loss(stand_in, None, inputs), leaf_BT


def _defaults(loss: Loss) -> dict[str, Any]:
    return {
        "epsilon_low": getattr(loss, "clip_low", None),
        "epsilon_high": getattr(loss, "clip_high", None),
        "delta": None,
        "beta": 0.0,
        "use_bias_correction_kl": False,
        "importance_sampling_level": "token",
        "off_policy_mask_threshold": None,
        "top_entropy_quantile": 1.0,
        "max_completion_length": BUDGET,
        "use_vllm": False,
        "aux_loss_enabled": False,
    }
