"""Adapters train as low-rank matrices written by hand in transformers do, in every layout."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engines.algorithms.spec import Algorithm
from engines.megatron.hf.folder import HfWeights
from engines.megatron.parallel import one_rank
from engines.megatron.spec import Lora, Optimizer, Parallel, TrainerSettings
from engines.megatron.train.policy_trainers import SftTrainer
from engines.step_inputs import StepInputs
from tests.integration.megatron.megatron_models import make_model, samples, sequences, varied
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

LORA = Lora(rank=4, alpha=6.0)
STEPS = 50
SHORT = [9, 6, 12]


def read_adapter(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    prefix = "base_model.model."
    stored = load_file(folder / "adapter/adapter_model.safetensors")
    assert all(name.startswith(prefix) for name in stored)
    return {name.removeprefix(prefix): tensor for name, tensor in stored.items()}


def adapted(
    weights: dict[str, torch.Tensor], matrices: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """transformers' `weights` with alpha / rank x B A added to those for which there are matrices.
    It holds a layer's experts in two tensors, gate above up in the first."""
    merged = dict(weights)
    for module in {name.rpartition(".lora_")[0] for name in matrices}:
        a, b = (matrices[f"{module}.lora_{letter}.weight"] for letter in "AB")
        added = LORA.alpha / LORA.rank * b @ a
        experts, _, rest = module.partition(".experts.")
        if not rest:
            merged[f"{module}.weight"] = merged[f"{module}.weight"] + added
            continue
        number, kind = rest.split(".")
        held = "down_proj" if kind == "down_proj" else "gate_up_proj"
        whole = torch.zeros_like(weights[f"{experts}.experts.{held}"][int(number)])
        half = len(whole) // 2
        rows = {"gate_proj": slice(0, half), "up_proj": slice(half, None)}.get(kind, slice(None))
        whole = whole.index_put((torch.arange(len(whole))[rows],), added)
        places = torch.tensor(int(number))
        name = f"{experts}.experts.{held}"
        merged[name] = merged[name].index_put((places,), whole, accumulate=True)
    return merged


def loss_of(model: Any, batch: list[Any], weights: dict[str, torch.Tensor]) -> torch.Tensor:
    """Mean over all trained tokens."""
    summed, count = torch.zeros((), dtype=next(model.parameters()).dtype), 0
    for sequence in batch:
        tokens = torch.tensor(sequence.tokens)
        logits = torch.func.functional_call(model, weights, (tokens[None],)).logits
        logprobs = torch.log_softmax(logits[0, :-1], -1)
        mask = torch.tensor(sequence.loss_mask[1:])
        summed = summed - (logprobs.gather(1, tokens[1:, None])[:, 0] * mask).sum()
        count += int(mask.sum())
    return summed / count


@contextmanager
def float64() -> Iterator[None]:
    """What transformers computes in float32 whatever a model's type is, it computes in float64."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "float", torch.Tensor.double)
        for name in ("float32", "float"):
            patch.setattr(torch, name, torch.float64)
        yield


@pytest.mark.parametrize(
    ("family", "modules"),
    # A layer of experts has 4 modules of attention, or 5 that make latents and use them; one dense
    # feed-forward or shared expert has 3, and so has each of 4 or 8 experts.
    [
        ("phi3", 4 * 4),
        # Three layers of 5 modules in a delta net, and one of 4 in attention.
        ("qwen3_5_text", 3 * 5 + 4 + 4 * 3),
        ("gpt_oss", 4 * 4),
        ("qwen3_moe", 4 * (4 + 4 * 3)),
        ("glm4_moe", 4 * 4 + 3 + 3 * (3 + 4 * 3)),
        ("deepseek_v3", 4 * 5 + 3 + 3 * (3 + 8 * 3)),
    ],
)
def test_fifty_steps_end_where_those_of_transformers_do(
    family: str, modules: int, tmp_path: Path
) -> None:
    """Phi's q, k and v are one module; Qwen's, which the layouts below train, are three."""
    source = tmp_path / "source"
    # With this seed no router comes within rounding of a tie in the fifty steps.
    model = make_model(family, source, seed=3).requires_grad_(False)
    # In float32 transformers' own delta nets end 4e-5 from themselves in float64, ours 4e-6.
    is_wide = family == "qwen3_5_text"
    model = model.double() if is_wide else model
    weights = dict(model.named_parameters())
    batches = [sequences(SHORT, seed) for seed in range(STEPS)]
    adam: dict[str, Any] = {"lr": 1e-3, "weight_decay": 0.01, "eps": 1e-8}
    with one_rank():
        optimizer = Optimizer(**adam, beta2=0.95, clip_grad=0.0)
        spec = TrainerSettings(lora=LORA)
        trainer = SftTrainer(spec, optimizer, Parallel(), source, seed=3, total_steps=STEPS)
        trainer.export(tmp_path / "first", source)
        steps = [trainer.sft_steps([batch])[0] for batch in batches]
        trainer.export(tmp_path / "last", source)
    matrices = read_adapter(tmp_path / "first")
    matrices = {name: tensor.to(model.dtype) for name, tensor in matrices.items()}
    assert len(matrices) == 2 * modules
    assert not any(tensor.any() for name, tensor in matrices.items() if ".lora_B." in name)
    learned = [tensor.requires_grad_() for tensor in matrices.values()]
    theirs = torch.optim.AdamW(learned, **adam, betas=(0.9, 0.95))
    # At the same matrices our gradients have the norm of those in float64 within 1.4e-5; in one of
    # these steps it changes by 7e-4 where matrices change by 4e-6.
    bound = 1e-3 if is_wide else 1e-4
    for batch, step in zip(batches, steps, strict=True):
        theirs.zero_grad()
        with float64() if is_wide else nullcontext():
            expected = loss_of(model, batch, adapted(weights, matrices))
            expected.backward()
        norm = torch.nn.utils.get_total_norm([tensor.grad for tensor in learned])
        theirs.step()
        assert step["loss"] == pytest.approx(expected.item(), abs=1e-5)
        assert step["grad_norm"] == pytest.approx(norm.item(), rel=bound)
    for name, tensor in read_adapter(tmp_path / "last").items():
        assert (tensor - matrices[name]).abs().max() < 1e-5, name
    merged = type(model).from_pretrained(tmp_path / "last")
    ends = adapted(weights, matrices)
    for name, tensor in merged.named_parameters():
        assert (tensor - ends[name]).abs().max() < 1e-5, name
    expected = loss_of(model, batches[0], ends)
    assert loss_of(merged, batches[0], {}).item() == pytest.approx(expected.item(), abs=1e-5)
    config = json.loads((tmp_path / "last/adapter/adapter_config.json").read_text())
    if family == "phi3":
        assert config["target_modules"] == ["down_proj", "gate_up_proj", "o_proj", "qkv_proj"]
    # Those that `peft` 0.21 would leave out: it takes the names for the routed experts' alone.
    beside = ["mlp.{}.weight", "mlp.shared_experts.{}.weight"]
    names = [form.format(f"{kind}_proj") for form in beside for kind in ("down", "gate", "up")]
    has_dense = family in ("glm4_moe", "deepseek_v3")
    assert sorted(config.get("target_parameters", [])) == (sorted(names) if has_dense else [])


def train(trainer: Any, folder: Path, source: Path, teacher: Path) -> dict[str, Any]:
    """Supervised steps around a checkpoint, then a step of RL with a reference and what a teacher
    says."""
    batch = sequences(LENGTHS, 3)
    first = trainer.logprobs([s.tokens for s in batch])
    supervised = trainer.sft_steps([sequences(LENGTHS, 1), sequences(LENGTHS[:3], 2)])
    trainer.save(folder / "checkpoint")
    further = trainer.sft_steps([sequences(LENGTHS, 4)])
    trained = weights(trainer)
    trainer.load(folder / "checkpoint")
    assert trainer.sft_steps([sequences(LENGTHS, 4)])[0]["loss"] == further[0]["loss"]
    resumed = weights(trainer)
    rollouts = samples(batch, [[x - 0.1 * (j % 5) for j, x in enumerate(v)] for v in first])
    with_kl = Algorithm.model_validate({"kl": {"coef": 0.1}, "mini_batches": 1})
    reinforced = trainer.rl_step(StepInputs(rollouts, with_kl, False)).metrics
    trainer.load_teachers({"test": teacher})
    taught = trainer.rl_step(StepInputs(rollouts, Algorithm(preset="opd", mini_batches=1), False))
    trainer.export(folder / "model", source)
    exported = HfWeights(folder / "model")
    published = [np.array_equal(t, exported.read(n)) for n, t in weights(trainer).items()]
    return {
        "supervised": [metrics["loss"] for metrics in supervised],
        "norms": [metrics["grad_norm"] for metrics in supervised],
        "reference_kl": reinforced["reference_kl"],
        "teacher_kl": taught.metrics["teacher_kl"],
        "same_published": all(published),
        "same_bits": all(np.array_equal(trained[name], resumed[name]) for name in trained),
    }


def weights(trainer: Any) -> dict[str, np.ndarray]:
    return {name: t.detach().cpu().numpy().copy() for name, t in trainer.hf_tensors()}


@pytest.fixture(scope="module")
def run(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    """What training a family in a layout comes to, and the folder of it; each is run once."""
    root = tmp_path_factory.mktemp("adapters")

    @functools.cache
    def models(family: str) -> tuple[Path, Path]:
        source = root / family
        make_model(family, source)
        return source, varied(source, root / f"{family}-teacher", seed=1)

    @functools.cache
    def run(family: str, layout: str, recompute: str = "kept") -> dict[str, Any]:
        source, teacher = models(family)
        spec = SPEC.model_copy(update={"lora": LORA, "megatron": RECOMPUTE[recompute]})
        args = TrainerArgs(source, {**LAYOUTS, **COMBINED, **EXPERTS, "alone": ALONE}[layout], spec)
        folder = root / f"{family}-{layout}-{recompute}"
        figures = ranks.run(train, args, folder, source, teacher)
        return {"figures": figures, "folder": folder, "source": source}

    return run


DENSE = [(layout, how) for layout in (*LAYOUTS, *COMBINED) for how in RECOMPUTE]
ROUTED = [layout for layout in (*LAYOUTS, *COMBINED, *EXPERTS) if layout != "tp2-cp2"]
EACH = [("qwen3", *case) for case in DENSE] + [
    (family, layout, "layers" if "pp2" in layout else "kept")
    for family in ("qwen3_moe", "glm4_moe", "deepseek_v3")
    for layout in ROUTED
]
SOME = [
    ("qwen3", "tp2", "kept"),
    ("qwen3", "pp2", "layers"),
    ("qwen3", "dp2", "kept"),
    ("qwen3_moe", "ep2", "layers"),
    ("glm4_moe", "tp2", "kept"),
    ("gpt_oss", "tp2-ep2", "layers"),
    ("qwen3_5_text", "tp2", "kept"),
    ("qwen3_5_text", "tp2-pp2", "layers"),
    ("deepseek_v3", "tp2-ep2", "kept"),
]


@pytest.mark.parametrize(("family", "layout", "recompute"), EACH if EACH_LAYOUT else SOME)
def test_a_layout_trains_adapters_like_one_process(
    family: str, layout: str, recompute: str, run: Callable[..., dict[str, Any]]
) -> None:
    alone, here = run(family, "alone"), run(family, layout, recompute)
    for figure, mine in here["figures"].items():
        assert mine == pytest.approx(alone["figures"][figure], rel=1e-5, abs=1e-6), figure
    assert here["figures"]["same_bits"]
    assert here["figures"]["same_published"]
    assert alone["figures"]["reference_kl"] > 0
    mine, theirs = (read_adapter(one["folder"] / "model") for one in (here, alone))
    assert mine.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert (mine[name] - tensor).abs().max() < 1e-5, name


def losses(trainer: Any) -> list[float]:
    steps = [sequences(SHORT, seed) for seed in range(3)]
    return [metrics["loss"] for metrics in trainer.sft_steps(steps)]


def test_experts_alone_have_adapters_where_ranks_share_them_out(
    ranks: Ranks, tmp_path: Path
) -> None:
    """No other weight trains, so Megatron's optimizer of all others is empty."""
    make_model("qwen3_moe", tmp_path)
    lora = Lora(rank=4, targets=["gate_proj", "up_proj", "down_proj"])
    spec = SPEC.model_copy(update={"lora": lora})
    alone, shared = (
        ranks.run(losses, TrainerArgs(tmp_path, parallel, spec))
        for parallel in (ALONE, EXPERTS["ep2"])
    )
    assert shared == pytest.approx(alone, abs=1e-5)
