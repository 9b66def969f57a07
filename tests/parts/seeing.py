"""A tiny model that sees images, as its makers would publish it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.parts.families import SIZES, all_fields


def seeing_folder(folder: Path) -> Any:
    """A tiny Qwen3.5 with eyes, and a layer for multi-token prediction; returns transformers'."""
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration

    config = Qwen3_5Config(
        text_config={**SIZES, **all_fields("qwen3_5_text"), "tie_word_embeddings": True},
        vision_config={
            "depth": 1,
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_heads": 2,
            "out_hidden_size": 32,
            "num_position_embeddings": 16,
        },
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    model = Qwen3_5ForConditionalGeneration(config).float().eval()
    model.save_pretrained(folder)
    extra = load_file(folder / "model.safetensors") | {"mtp.fc.weight": torch.ones(2, 4)}
    save_file(extra, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "preprocessor_config.json").write_text("{}")
    return model
