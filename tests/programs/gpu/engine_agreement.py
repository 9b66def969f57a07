"""How far the trainer's logprobs are from an engine's in bf16, and what learning makes of it.

The engine is transformers' own decoding with a KV cache, for SGLang does not run everywhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from engines.algorithms.spec import Algorithm
from engines.batching import TokenSequence
from engines.megatron.rl.trainer import RlTrainer
from engines.step_inputs import StepInputs
from infra.cuda import has_cuda
from tests.programs.bench.rows import Row
from tests.programs.gpu.parity import samples_of
from tests.programs.gpu.random_model import SHALLOW, TINY, random_model
from tests.programs.gpu.settings import sequences, size_here, trainer

BATCHES = (64, 1)
"""answers that are sampled together: an engine's kernels depend on how many"""
PROMPT = 16
ANSWER = 128 if has_cuda() else 16
CURVE_STEPS = 100 if has_cuda() else 8
GATE = 0.05
"""in nats a token: what the docs tell a person to set for bf16"""


def agreement() -> list[Row]:
    """Of answers that the engine samples, and of a step of RL on them."""
    size = size_here()
    rows: list[Row] = []
    sampled = {batch: _sampled(random_model(size), size.vocab, batch) for batch in BATCHES}
    with trainer(random_model(size), "bf16") as trained:
        for batch, (drawn, engine) in sampled.items():
            apart = np.abs(_scored(trained, drawn) - _of_answers(drawn, engine))
            note = f"Qwen3 {size.name}, random weights, bf16, {len(apart)} tokens"
            name = f"agreement with an engine, {batch} at once"
            rows += [
                Row(f"{name}, mean", float(apart.mean()), "nats", GATE, True, note),
                Row(f"{name}, p99", float(np.quantile(apart, 0.99)), "nats", note=note),
                Row(f"{name}, worst", float(apart.max()), "nats", note=note),
            ]
        drawn, engine = sampled[BATCHES[0]]
        step = StepInputs(samples_of(drawn, engine), Algorithm(), gate=False)
        found = trained.rl_step(step).metrics
    note = f"Qwen3 {size.name}, {len(drawn)} answers"
    return [
        *rows,
        Row("RL on them: mismatch_k3", found["mismatch_k3"], "nats a token", 0.01, True, note),
        Row("RL on them: effective share", found["mismatch_ess"], "ratio", 0.9, note=note),
    ]


def rounding() -> list[Row]:
    """Who rounds more in bf16, the trainer or the engine: both against the trainer in fp32, with
    weights so large that their layers make the most of it."""
    size = size_here()
    size = replace(size, name=f"{size.name} of four times the spread", spread=4 * size.spread)
    model = random_model(size)
    drawn, sampled = _sampled(model, size.vocab, BATCHES[0])
    engine = _of_answers(drawn, sampled)
    scores: dict[str, NDArray[Any]] = {}
    for precision in ("fp32", "bf16"):
        with trainer(model, precision) as trained:
            scores[precision] = _scored(trained, drawn)
    ours = float(np.abs(scores["bf16"] - scores["fp32"]).mean())
    theirs = float(np.abs(engine - scores["fp32"]).mean())
    note = f"Qwen3 {size.name}, {len(engine)} tokens, mean; the engine {theirs:.4f}"
    return [
        Row("bf16 of the trainer against fp32", ours, "nats", note=note),
        Row("the same, against the engine's", ours / theirs, "ratio", 1.2, True, note),
    ]


def learning_curves() -> list[Row]:
    """The loss of a model that learns a few sequences by heart, in bf16 (with weights in fp32
    behind) against fp32."""
    size = SHALLOW if has_cuda() else TINY
    drawn = sequences(size.vocab, 16, 384)
    curves: list[NDArray[np.float64]] = []
    for precision in ("fp32", "bf16"):
        with trainer(random_model(size), precision, lr=1e-3) as trained:
            steps = trained.sft_steps([drawn] * CURVE_STEPS)
            curves.append(np.array([step["loss"] for step in steps]))
    exact, rounded = curves
    apart = float(np.abs(rounded - exact).max() / exact[0])
    note = f"Qwen3 {size.name}, {CURVE_STEPS} steps, loss {exact[0]:.3f} to {exact[-1]:.3f}"
    return [
        Row("loss of bf16 against fp32, worst step", apart, "of the first", 0.02, True, note),
        Row("loss of fp32, last against first", exact[-1] / exact[0], "ratio", 0.9, True, note),
    ]


def _scored(trained: RlTrainer, drawn: list[TokenSequence]) -> NDArray[Any]:
    """The trainer's logprobs of the answers' tokens."""
    scored = trained.logprobs([s.tokens for s in drawn])
    return _of_answers(drawn, np.concatenate([np.array(values) for values in scored]))


def _of_answers(drawn: list[TokenSequence], values: NDArray[Any]) -> NDArray[Any]:
    return values[np.concatenate([np.array(s.loss_mask, bool) for s in drawn])]


def _sampled(model: Any, vocab: int, batch: int) -> tuple[list[TokenSequence], NDArray[Any]]:
    """The engine's answers to random prompts, and its logprobs of them, flat and 0 at prompts."""
    from transformers import AutoModelForCausalLM

    place = "cuda" if has_cuda() else "cpu"
    engine: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
    engine = engine.to(place).eval()
    torch.manual_seed(0)
    prompts = torch.randint(0, vocab, (batch, PROMPT), device=place)
    with torch.no_grad():
        out = engine.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            max_new_tokens=ANSWER,
            min_new_tokens=ANSWER,
            do_sample=True,
            top_k=0,
            return_dict_in_generate=True,
            output_logits=True,
            pad_token_id=0,
        )
    answers = out.sequences[:, PROMPT:]
    scores = torch.stack(out.logits, 1).float().log_softmax(-1)
    logprobs = scores.gather(2, answers[..., None])[..., 0].cpu().numpy()
    flat = np.pad(logprobs, ((0, 0), (PROMPT, 0))).reshape(-1)
    mask = [0] * PROMPT + [1] * ANSWER
    return [TokenSequence(tokens, mask) for tokens in out.sequences.tolist()], flat
