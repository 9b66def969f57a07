"""A HF folder with random weights in the shape of a Qwen3 model; needs no transformers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from engines.families.common.registry import model_shape
from engines.families.common.tensors import SINGLE

_SPREAD = 0.02
"""of the weights, as transformers draws them"""


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


def write_random_model(folder: Path, size: Size) -> Path:
    """The same bits in every call."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(size.config))
    shape = model_shape(size.config)
    draw = torch.Generator().manual_seed(0)
    tensors = {
        tensor.name: _drawn(tensor.size(shape.axes), draw) for tensor in shape.expected_tensors()
    }
    save_file(tensors, folder / SINGLE, metadata={"format": "pt"})
    return folder


def _drawn(size: tuple[int, ...], draw: torch.Generator) -> torch.Tensor:
    values = torch.randn(size, generator=draw)
    return 1 + _SPREAD * values if len(size) == 1 else _SPREAD * values
