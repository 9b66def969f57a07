"""Tiny HF folders of every supported family, and batches for them."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engines.batching import TokenSequence
from engines.types import Sample, Status
from tests.parts.families import EXAMPLES, SIZES, hf_config
from tests.parts.sample_parts import sample_of

VOCAB = SIZES["vocab_size"]
WINDOWED = [name for name, example in EXAMPLES.items() if example.windows]
"""families of which all models are tied"""
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 2.0,
    "original_max_position_embeddings": 16,
}
LONG_ROPE = {
    "partial_rotary_factor": 0.75,
    "original_max_position_embeddings": 128,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0, 1.3, 2.1],
        "long_factor": [2.0, 3.0, 5.0],
    },
}


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2-tied": ("qwen2", {"tie_word_embeddings": True}),
    "llama3": ("llama", {"rope_parameters": LLAMA3_ROPE}),
    "phi3-long": ("phi3", LONG_ROPE),
    "qwen3_5_text-long": ("qwen3_5_text", {"max_position_embeddings": 512}),
    "glm4_moe-late": ("glm4_moe", {"first_k_dense_replace": 2}),
}
"""family and changed fields, by a name of its own"""


def make_model(name: str, folder: Path, seed: int | None = None) -> Any:
    """Save a random model with large weights, so that errors show, to `folder`; returns it.

    `name` is a family or a variant of one."""
    import torch
    from transformers import AutoModelForCausalLM

    family, changes = VARIANTS.get(name, (name, {}))
    config = hf_config(family, **{"tie_word_embeddings": family in ("qwen3", *WINDOWED)} | changes)
    if seed is None:
        # With 3, a router of this family stands within rounding of a tie on the tests' tokens.
        seed = 4 if family == "deepseek_v3" else 3
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            noise = 0.1 * torch.randn(parameter.shape)
            parameter.copy_(parameter + noise if parameter.dim() == 1 else parameter * 4)
    model.save_pretrained(folder)
    return model


def varied(source: Path, folder: Path, seed: int, scale: float = 0.3) -> Path:
    """A copy of a model folder whose matrices differ by noise, `scale` times their own spread."""
    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(source, folder)
    draw = torch.Generator().manual_seed(seed)
    tensors = load_file(folder / "model.safetensors")
    for tensor in tensors.values():
        if tensor.dim() > 1:
            noise = torch.randn(tensor.shape, generator=draw)
            tensor += scale * tensor.std() * noise
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def sequences(lengths: list[int], seed: int = 0) -> list[TokenSequence]:
    """Random tokens; the first third of each sequence is a prompt."""
    draw = random.Random(seed)
    return [
        TokenSequence(
            [draw.randrange(VOCAB) for _ in range(length)],
            [0] * (length // 3) + [1] * (length - length // 3),
        )
        for length in lengths
    ]


def samples(
    batch: list[TokenSequence],
    logprobs: list[list[float]],
    group_size: int = 4,
    domains: Sequence[str] = ("test",),
) -> list[Sample]:
    """Rollouts of those sequences with the given engine logprobs and alternating rewards, of the
    domains in turn."""
    return [
        sample_of(
            problem_id=f"p{i // group_size}",
            domain=domains[i % len(domains)],
            group_id=f"g{i // group_size}",
            rollout_id=f"r{i}",
            sample_index=i % group_size,
            tokens=s.tokens,
            loss_mask=s.loss_mask,
            logprobs=[x * m for x, m in zip(values, s.loss_mask, strict=True)],
            weight_versions=[0 if m else -1 for m in s.loss_mask],
            status=Status.COMPLETED,
            token_budget=len(s.tokens),
            reward=float(i % 3 == 0) + 0.25 * (i % 2),
        )
        for i, (s, values) in enumerate(zip(batch, logprobs, strict=True))
    ]
