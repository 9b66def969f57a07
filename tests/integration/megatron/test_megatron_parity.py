"""Every layout does what one process does: same loss, gradient norm, weights, logprobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engines.algorithms.spec import Algorithm
from engines.step_inputs import StepInputs
from tests.integration.megatron.megatron_models import (
    WINDOWED,
    make_model,
    samples,
    sequences,
    varied,
)
from tests.integration.megatron.megatron_ranks import (
    ALONE,
    COMBINED,
    EACH_LAYOUT,
    EXPERTS,
    LAYOUTS,
    LENGTHS,
    RECOMPUTE,
    SPEC,
    Ranks,
    TrainerArgs,
)

pytestmark = pytest.mark.integration

MIXTURES = ("qwen3_moe", "glm4_moe", "deepseek_v3")
MODELS = ("qwen3", "qwen2", "qwen3_5_text", *MIXTURES, *(WINDOWED if EACH_LAYOUT else ()))
WIDE = {"clip_low": 0.05, "clip_high": 0.05}
ALGORITHMS = {
    "token_mean": Algorithm(),
    "sequence_mean": Algorithm(aggregation="sequence_mean"),
    # The sequence's ratio is a sum over context-parallel ranks, with its gradient.
    "gspo": Algorithm(preset="gspo", loss=WIDE),
    "opsm": Algorithm(preset="gspo", loss=WIDE, correction={"reject": [{"kind": "opsm"}]}),
    "corrected": Algorithm(
        advantage="reinforce++",
        loss={"clip_high": 0.2},
        kl={"coef": 0.1, "unbiased": True},
        aggregation="rollout_mean",
        old_logprobs="trainer",
        correction={
            "weight": {"level": "sequence", "high": 1.5, "normalize": True},
            "reject": [{"kind": "ratio", "level": "geometric", "high": 1.25}],
        },
    ),
    "opd": Algorithm(preset="opd", mini_batches=1),
    "divergence": Algorithm.model_validate(
        {"advantage": "distillation", "loss": {"kind": "divergence", "top_k": 7}}
    ),
}
METRICS = ("loss", "grad_norm", "entropy", "ratio_mean", "ratio_max", "clip_fraction", "kl_k3")
MORE = (
    *("mismatch_k1", "mismatch_k3", "mismatch_ess", "mismatch_ratio_p99"),
    *("opsm_share", "reference_kl", "weight_mean", "rejected_share"),
    *("teacher_kl", "teacher_kl_test", "teacher_kl_lone"),
)


def train(trainer: Any, algorithm: Algorithm, teacher: Path) -> dict[str, Any]:
    """Two supervised steps and an RL step of two mini-batches; everything that can be compared."""
    first = trainer.logprobs([s.tokens for s in sequences(LENGTHS)])
    supervised = trainer.sft_steps([sequences(LENGTHS, 1), sequences(LENGTHS[:3], 2)])
    batch = sequences(LENGTHS, 3)
    old = trainer.logprobs([s.tokens for s in batch])
    rollouts = samples(batch, [[x - 0.1 * (j % 5) for j, x in enumerate(v)] for v in old])
    if algorithm.advantage.kind == "distillation":
        rollouts[0].domain = "lone"  # fewer samples of it than ranks
        trainer.load_teachers({"lone": teacher, "test": teacher})
    reinforced = trainer.rl_step(StepInputs(rollouts, algorithm, False)).metrics
    return {
        "logprobs": first,
        "supervised": supervised,
        "reinforced": reinforced,
        "weights": {name: t.detach().cpu().numpy().copy() for name, t in trainer.hf_tensors()},
    }


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    for name in MODELS:
        make_model(name, root / name)
    varied(root / "qwen3", root / "teacher", seed=1)
    return {name: root / name for name in (*MODELS, "teacher")}


@pytest.fixture(scope="module")
def alone(ranks: Ranks, folders: dict[str, Path]) -> dict[str, Any]:
    """What one process does."""
    cases = [("qwen3", how) for how in ALGORITHMS]
    cases += [(name, "token_mean") for name in MODELS if name != "qwen3"]
    return {
        f"{name} {how}": ranks.run(
            train, TrainerArgs(folders[name]), ALGORITHMS[how], folders["teacher"]
        )
        for name, how in cases
    }


def largest_difference(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> float:
    assert a.keys() == b.keys()
    return max(float(np.abs(a[name] - b[name]).max()) for name in a)


WITH_EXPERTS = [
    *[("qwen3_moe", layout) for layout in ("ep2", "tp2-ep2")],
    *[("glm4_moe", layout) for layout in ("pp2", "ep2", "tp2-dp2-ep2")],
    ("deepseek_v3", "tp2-cp2"),
]
TELLING = [
    *[(layout, f"{name} token_mean", "kept") for name, layout in WITH_EXPERTS],
    ("cp2", "qwen3 token_mean", "kept"),
    *[("cp2", "qwen3 sequence_mean", "kept"), ("dp2", "qwen3 sequence_mean", "kept")],
    *[("tp2", "qwen2 token_mean", "kept"), ("pp2", "qwen2 token_mean", "kept")],
    ("cp2", "qwen3 opsm", "kept"),
    ("tp2-pp2", "qwen3_5_text token_mean", "kept"),
    *[("alone", "qwen3_5_text token_mean", how) for how in ("attention", "layers")],
    *[(layout, "qwen3 corrected", "kept") for layout in LAYOUTS],
    *[("dp2", "qwen3 opd", "kept"), ("tp2", "qwen3 opd", "kept")],
    ("tp2-pp2", "qwen3 divergence", "kept"),
    ("tp2-pp2", "qwen3 token_mean", "layers"),
    ("tp2-cp2", "qwen3 corrected", "attention"),
    ("dp2-cp2", "qwen3 gspo", "kept"),
]
ALL = [
    *[(layout, f"qwen3 {how}", "kept") for layout in (*LAYOUTS, *COMBINED) for how in ALGORITHMS],
    *[
        (layout, f"{name} token_mean", "kept")
        for name in ("qwen2", *WINDOWED)
        for layout in (*LAYOUTS, *COMBINED)
    ],
    *[("alone", f"{name} token_mean", how) for name in WINDOWED for how in RECOMPUTE],
    *[
        (layout, f"{name} token_mean", "kept")
        for name in MIXTURES
        for layout in (*LAYOUTS, *COMBINED, *EXPERTS)
    ],
    *[
        (layout, "qwen3 token_mean", activations)
        for layout in ("alone", *LAYOUTS, *COMBINED)
        for activations in RECOMPUTE
        if activations != "kept"
    ],
]


@pytest.mark.parametrize(("layout", "case", "activations"), ALL if EACH_LAYOUT else TELLING)
def test_a_layout_trains_like_one_process(
    layout: str,
    case: str,
    activations: str,
    ranks: Ranks,
    folders: dict[str, Path],
    alone: dict[str, Any],
) -> None:
    name, how = case.split()
    parallel = {"alone": ALONE, **LAYOUTS, **COMBINED, **EXPERTS}[layout]
    spec = SPEC.model_copy(update={"megatron": RECOMPUTE[activations]})
    args = TrainerArgs(folders[name], parallel, spec)
    here = ranks.run(train, args, ALGORITHMS[how], folders["teacher"])
    there = alone[case]
    for mine, theirs in zip(here["logprobs"], there["logprobs"], strict=True):
        assert mine == pytest.approx(theirs, abs=1e-5)
    for mine, theirs in zip(here["supervised"], there["supervised"], strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
        assert mine["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-4)
        assert mine["lr"] == theirs["lr"]
    assert here["reinforced"].keys() == there["reinforced"].keys()
    for metric in [*METRICS, *[m for m in MORE if m in there["reinforced"]]]:
        mine, theirs = here["reinforced"][metric], there["reinforced"][metric]
        assert mine == pytest.approx(theirs, rel=1e-4, abs=1e-6), metric
    assert largest_difference(here["weights"], there["weights"]) < 1e-4
