"""HF folders to Megatron's `dist_checkpointing` and back, and how far logits are apart after it.

Both in one process, which holds the whole model.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy
from torch import Tensor

from engines.families.common.family import ModelShape
from engines.families.common.model_config import read_config
from engines.families.common.registry import model_shape
from engines.megatron import device
from engines.megatron.hf.dist_folder import DistWeights, parameters
from engines.megatron.hf.folder import HfWeights
from engines.megatron.hf.layout import load_weights
from engines.megatron.hf.write_hf import copy_descriptions
from engines.megatron.model import PackedModel, build_model, transformer_config
from engines.megatron.parallel import current_layout, one_rank
from engines.megatron.spec import Parallel
from engines.megatron.train.checkpoint import seed_all
from engines.megatron.train.pack import FlatSequences, build_pack

_SEQUENCES, _LONGEST = 4, 64


def write_dist_folder(source: Path, folder: Path) -> None:
    """Write the HF folder `source` as a dist_checkpointing folder, with its configuration and its
    tokenizer beside the weights. Raises InputError."""
    config, weights = read_config(source), HfWeights(source)
    shape = model_shape(config)
    is_half = weights.read(next(iter(weights.file_of))).dtype == torch.bfloat16
    with one_rank():
        model = _build(shape, "bf16" if is_half else "fp32")
        load_weights(model, shape, current_layout(Parallel()), weights.read, weights.file_of)
        with device.cuda_means_cpu():
            state = model.sharded_state_dict(metadata={})
            strategy = TorchDistSaveShardedStrategy("torch_dist", 1, thread_count=1)
            dist_checkpointing.save(state, str(folder), strategy)
    copy_descriptions(source, folder)


def largest_difference(dist: Path, hf: Path) -> float:
    """Return the largest difference between the logits of Megatron-core with the weights of `dist`,
    as they are stored, and of transformers with those of `hf`: in float32, over every position of a
    few random sequences.

    The configuration is that of `hf`.
    """
    shape = model_shape(read_config(hf))
    draw = random.Random(0)
    length = min(_LONGEST, shape.max_positions)
    tokens = [[draw.randrange(shape.vocab) for _ in range(length)] for _ in range(_SEQUENCES)]
    expected = torch.cat([logits[:-1] for logits in _hf_logits(hf, tokens)])
    return float((_megatron_logits(dist, shape, tokens) - expected).abs().max())


def _hf_logits(folder: Path, tokens: list[list[int]]) -> Iterator[Tensor]:
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    loaded: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model = loaded.eval()
    with torch.no_grad():
        for sequence in tokens:
            yield model(torch.tensor([sequence])).logits[0]


def _megatron_logits(dist: Path, shape: ModelShape, tokens: list[list[int]]) -> Tensor:
    """[R, V] of every position that predicts another token of its sequence."""
    weights = DistWeights(dist)
    with one_rank(), torch.no_grad():
        model = _build(shape, "fp32")
        held = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        for name, layer in parameters(shape):
            full = name if layer is None else f"decoder.layers.{layer}.{name}"
            stored = weights.read(name, layer, shape.num_layers)
            # Megatron may pad the vocabulary.
            held[full].copy_(stored[: held[full].shape[0]])
        masks = [[1] * len(sequence) for sequence in tokens]
        layout = current_layout(Parallel())
        pack = build_pack(FlatSequences.of(tokens, masks), list(range(len(tokens))), layout)
        logits: Tensor = model(pack.input_ids, None, None, packed_seq_params=pack)
        return logits.float().cpu()


def _build(shape: ModelShape, precision: str) -> PackedModel:
    seed_all(0)
    layout = current_layout(Parallel())
    return build_model(shape, transformer_config(shape, layout, precision, {}), layout)
