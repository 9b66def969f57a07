"""A HF folder with random weights in the shape of a Qwen3 model; needs no transformers."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from engines.families.common.registry import model_shape
from engines.families.common.tensors import SINGLE


@dataclass(frozen=True, slots=True)
class Size:
    """What tells one Qwen3 model from another; every one has tied embeddings here."""

    name: str
    hidden: int
    layers: int
    heads: int
    groups: int
    head_dim: int
    ffn: int
    vocab: int
    spread: float = 0.02
    """of the weights, as transformers draws them"""

    @property
    def config(self) -> dict[str, Any]:
        return {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.groups,
            "head_dim": self.head_dim,
            "intermediate_size": self.ffn,
            "vocab_size": self.vocab,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1_000_000.0,
            "max_position_embeddings": 32_768,
            "tie_word_embeddings": True,
            "torch_dtype": "float32",
        }


TINY = Size("tiny", 128, 3, 4, 2, 32, 384, 2_048)
"""what two cores of a CPU train on within a second"""
SHALLOW = Size("0.6B with 4 layers", 1_024, 4, 16, 8, 128, 3_072, 32_000)
"""what a CPU computes in fp32 while a GPU waits"""
SMALL = Size("0.6B", 1_024, 28, 16, 8, 128, 3_072, 151_936)
"""Qwen3-0.6B"""


WIDE = Size("8B with 4 layers", 4_096, 4, 32, 8, 128, 12_288, 151_936)
"""layers as wide as Qwen3-8B's, as many as one GPU trains without anything to save memory"""
_MODELS = Path("build/gpu-models")


def random_model(size: Size) -> Path:
    """A folder that is written once and kept for the parts that follow."""
    folder = _MODELS / size.name.replace(" ", "-")
    if not folder.exists():
        begun = folder.with_name(f"{folder.name}.{os.getpid()}")
        write_random_model(begun, size)
        begun.rename(folder)
    return folder


def write_random_model(folder: Path, size: Size) -> Path:
    """The same bits in every call."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(size.config))
    shape = model_shape(size.config)
    draw = torch.Generator().manual_seed(0)
    tensors = {
        tensor.name: _drawn(tensor.size(shape.axes), size.spread, draw)
        for tensor in shape.expected_tensors()
    }
    save_file(tensors, folder / SINGLE, metadata={"format": "pt"})
    return folder


def _drawn(size: tuple[int, ...], spread: float, draw: torch.Generator) -> torch.Tensor:
    values = torch.randn(size, generator=draw)
    return 1 + spread * values if len(size) == 1 else spread * values
