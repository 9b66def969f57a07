"""A tiny reward model: a head for classification on the body of another model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path


def with_head(model: Path, folder: Path, outputs: int = 1, seed: int = 0) -> Path:
    """A copy of a Qwen3 model's folder, as transformers stores one for sequence classification;
    returns the copy."""
    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(model, folder)
    config = json.loads((folder / "config.json").read_text())
    labels = {str(index): f"label-{index}" for index in range(outputs)}
    config |= {"architectures": ["Qwen3ForSequenceClassification"], "id2label": labels}
    config["label2id"] = {name: int(index) for index, name in labels.items()}
    (folder / "config.json").write_text(json.dumps(config))
    weights = load_file(folder / "model.safetensors")
    weights.pop("lm_head.weight", None)
    torch.manual_seed(seed)
    weights["score.weight"] = torch.randn(outputs, config["hidden_size"]) * 0.1
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
