"""A zero bias for heads that SGLang gives one and transformers does not.

SGLang 0.5.23 leaves it as its random numbers were: each server would add another constant to every
score. Remove this when SGLang's classes build their `score` without a bias.
"""

from __future__ import annotations

import json
from pathlib import Path

from engines.families.common.tensors import INDEX
from tasks.model_folder.files import ModelFiles
from tasks.model_folder.stored_tensors import stored_tensors

_WITH_BIAS = ("Qwen2ForSequenceClassification", "Qwen3ForSequenceClassification")
_FILE = "score-bias.safetensors"
_WEIGHT, _BIAS = "score.weight", "score.bias"


def add_head_bias(folder: Path) -> None:
    """Write it into a local copy of a model's folder, if the model needs and lacks it."""
    config = json.loads((folder / "config.json").read_text())
    tensors = stored_tensors(ModelFiles(str(folder)))
    if not {*_WITH_BIAS} & {*config["architectures"]} or _WEIGHT not in tensors:
        return
    if _BIAS in tensors:
        return
    import numpy as np
    from safetensors.numpy import save_file

    outputs = tensors[_WEIGHT].size[0]
    save_file({_BIAS: np.zeros(outputs, np.float32)}, folder / _FILE, metadata={"format": "pt"})
    file_of = {name: tensor.file for name, tensor in tensors.items()} | {_BIAS: _FILE}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": file_of}))
