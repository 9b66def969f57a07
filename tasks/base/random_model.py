"""A small random model as an HF folder: weights, configuration, tokenizer, template.

numpy and safetensors only: importing torch and transformers would take longer than the rest.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engines.families.common.tensors import EMBEDDING, HfTensor
from engines.families.glm4_moe import FAMILY as MIXTURE
from engines.families.qwen3 import FAMILY
from engines.types import Demonstration
from tasks.base.spec import CHOSEN
from tasks.base.tokenizer import END, PAD, STOP_TOKENS, TEMPLATE, train_tokenizer

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
    """Write all but the weights; returns the size of the vocabulary. Raises InputError."""
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
    """Name and fp32 values, drawn in this order; norms are ones, and a router's bias zeros."""
    import numpy as np

    rng = np.random.default_rng(seed)
    shape = (MIXTURE if made.experts else FAMILY).read_shape(hf_config(made))
    for tensor in shape.expected_tensors():
        size = tensor.size(shape.axes)
        if len(size) == 1:
            made_of = np.zeros if tensor.rows == ("experts",) else np.ones
            yield tensor.name, made_of(size, np.float32)
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
    config = {
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
    return config | (_of_experts(shape) if shape.experts else {})


def _of_experts(shape: RandomModel) -> dict[str, Any]:
    """Fields in which a config.json of GLM-4.5 differs."""
    return {
        "architectures": [MIXTURE.architecture],
        "model_type": "glm4_moe",
        "first_k_dense_replace": 1,
        "moe_intermediate_size": shape.ffn_size // 2,
        "n_group": 1,
        "n_routed_experts": shape.experts,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_experts_per_tok": CHOSEN,
        "num_nextn_predict_layers": 0,
        "partial_rotary_factor": 0.5,
        "rope_parameters": {
            "rope_theta": 10000.0,
            "rope_type": "default",
            "partial_rotary_factor": 0.5,
        },
        "routed_scaling_factor": 1.0,
        "tie_word_embeddings": False,
        "topk_group": 1,
        "use_qk_norm": True,
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
