"""Folders whose matrices are FP8 with a scale for each block, as DeepSeek's are: in bfloat16. Needs
torch, and no Megatron.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import save_file

from engines.families.common.model_config import read_config
from engines.families.common.tensors import INDEX, SINGLE
from engines.megatron.convert.write_hf import copy_descriptions
from engines.megatron.hf.folder import HfWeights
from engines.weights.fp8_blocks import SCALES, dequantised
from infra.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor


def write_plain_folder(source: Path, folder: Path) -> int:
    """Write the FP8 folder `source` without scales, file by file; returns how many matrices were
    FP8. Raises InputError."""
    config, weights = read_config(source), HfWeights(source)
    block = _block(config)
    copy_descriptions(source, folder)
    kept = {name: file for name, file in weights.file_of.items() if not name.endswith(SCALES)}
    count = 0
    for file in sorted(set(kept.values())):
        named: dict[str, Tensor] = {}
        for name in (name for name, own in kept.items() if own == file):
            named[name] = weights.read(name)
            if named[name].element_size() == 1:
                try:
                    named[name] = dequantised(named[name], weights.read(name + SCALES), block)
                except InputError as error:
                    raise InputError(f"{source}/{file}: {name}: {error}") from None
                count += 1
        save_file(named, folder / file, metadata={"format": "pt"})
    (folder / INDEX).unlink(missing_ok=True)
    if set(kept.values()) != {SINGLE}:
        (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": kept}, indent=1))
    plain = {n: v for n, v in config.items() if n not in ("quantization_config", "torch_dtype")}
    (folder / "config.json").write_text(json.dumps(plain | {"dtype": "bfloat16"}, indent=2))
    return count


def _block(config: Mapping[str, Any]) -> tuple[int, int]:
    match config["quantization_config"].get("weight_block_size"):
        case [int(high), int(wide)] if high > 0 and wide > 0:
            return high, wide
        case other:
            raise InputError(
                f"config.json: quantization_config.weight_block_size is {other!r}; FP8 with a scale"
                " for each block is read, e.g. [128, 128]: give the model in bfloat16"
            )
