"""A small random Qwen3 as an HF folder: weights, configuration, tokenizer, template.

numpy and safetensors only: importing torch and transformers would take longer than the rest.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engines.families.common.tensors import EMBEDDING, HfTensor
from engines.families.qwen3 import FAMILY
from engines.types import Demonstration
from tasks.base.chat_format import END, PAD, STOP_TOKENS, TEMPLATE
from tasks.base.tokenizer import train_tokenizer

if TYPE_CHECKING:
    import numpy as np
    from tokenizers import Tokenizer

    from tasks.base.spec import RandomModel

_OUTPUT_SCALE = 0.1
"""of fan-in scale: a residual branch starts small, so that copying can form"""


def write_random_model(
    folder: Path, shape: RandomModel, demonstrations: list[Demonstration], seed: int
) -> dict[str, float]:
    """Fill `folder`; returns counts of parameters and tokens. Raises InputError."""
    from safetensors.numpy import save_file

    weights = dict(_weights(shape, seed))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return {
        "parameters": float(sum(w.size for w in weights.values())),
        "vocabulary": float(write_chat_files(folder, shape, demonstrations)),
    }


def write_chat_files(
    folder: Path, shape: RandomModel, demonstrations: Sequence[Demonstration]
) -> int:
    """All but the weights; returns the size of the vocabulary. Raises InputError."""
    tokenizer = train_tokenizer(demonstrations, shape.vocab_size)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    stops = [_id(tokenizer, token) for token in STOP_TOKENS]
    ends = {"eos_token_id": stops, "pad_token_id": _id(tokenizer, PAD)}
    _write(folder / "config.json", {**hf_config(shape), **ends})
    _write(folder / "generation_config.json", {**ends, "do_sample": True})
    _write(folder / "tokenizer_config.json", _tokenizer_config(shape))
    return tokenizer.get_vocab_size()


def _weights(made: RandomModel, seed: int) -> Iterator[tuple[str, np.ndarray]]:
    """Name and fp32 values, drawn in this order; norms are ones."""
    import numpy as np

    rng = np.random.default_rng(seed)
    shape = FAMILY.read_shape(hf_config(made))
    for tensor in shape.expected_tensors():
        size = tensor.size(shape.axes)
        if len(size) == 1:
            yield tensor.name, np.ones(size, np.float32)
        else:
            drawn = rng.standard_normal(size, dtype=np.float32)
            yield tensor.name, drawn * np.float32(_spread(made, tensor, size[1]))


def _spread(made: RandomModel, tensor: HfTensor, fan_in: int) -> float:
    if tensor.name == EMBEDDING:
        return made.embedding_std
    is_output = tensor.rows == ("hidden",)
    return (_OUTPUT_SCALE if is_output else 1.0) * fan_in**-0.5


def hf_config(shape: RandomModel) -> dict[str, Any]:
    """The model's config.json, but for its end tokens."""
    return {
        "architectures": [FAMILY.architecture],
        "model_type": "qwen3",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "dtype": "float32",
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.ffn_size,
        "max_position_embeddings": shape.max_length,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "vocab_size": shape.vocab_size,
    }


def _tokenizer_config(shape: RandomModel) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "eos_token": END,
        "pad_token": PAD,
        "model_max_length": shape.max_length,
    }


def _id(tokenizer: Tokenizer, token: str) -> int:
    found = tokenizer.token_to_id(token)
    assert found is not None, token
    return found


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
