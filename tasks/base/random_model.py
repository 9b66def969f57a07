"""A small random Qwen3 as an HF folder: weights, configuration, tokenizer, template.

numpy and safetensors only: importing torch and transformers would take longer than the rest.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    _write(folder / "config.json", {**_config(shape), **ends})
    _write(folder / "generation_config.json", {**ends, "do_sample": True})
    _write(folder / "tokenizer_config.json", _tokenizer_config(shape))
    return tokenizer.get_vocab_size()


def _weights(shape: RandomModel, seed: int) -> Iterator[tuple[str, np.ndarray]]:
    """Name and fp32 values, drawn in this order."""
    import numpy as np

    rng = np.random.default_rng(seed)
    width, heads = shape.hidden_size, shape.heads * shape.head_dim
    groups = shape.kv_heads * shape.head_dim

    def normal(out: int, fan_in: int, std: float) -> np.ndarray:
        return rng.standard_normal((out, fan_in), dtype=np.float32) * np.float32(std)

    def linear(out: int, fan_in: int, scale: float = 1.0) -> np.ndarray:
        return normal(out, fan_in, scale * fan_in**-0.5)

    def ones(size: int) -> np.ndarray:
        return np.ones(size, np.float32)

    yield "model.embed_tokens.weight", normal(shape.vocab_size, width, shape.embedding_std)
    for layer in range(shape.layers):
        at = f"model.layers.{layer}"
        yield f"{at}.input_layernorm.weight", ones(width)
        yield f"{at}.self_attn.q_proj.weight", linear(heads, width)
        yield f"{at}.self_attn.k_proj.weight", linear(groups, width)
        yield f"{at}.self_attn.v_proj.weight", linear(groups, width)
        yield f"{at}.self_attn.o_proj.weight", linear(width, heads, _OUTPUT_SCALE)
        yield f"{at}.self_attn.q_norm.weight", ones(shape.head_dim)
        yield f"{at}.self_attn.k_norm.weight", ones(shape.head_dim)
        yield f"{at}.post_attention_layernorm.weight", ones(width)
        yield f"{at}.mlp.gate_proj.weight", linear(shape.ffn_size, width)
        yield f"{at}.mlp.up_proj.weight", linear(shape.ffn_size, width)
        yield f"{at}.mlp.down_proj.weight", linear(width, shape.ffn_size, _OUTPUT_SCALE)
    yield "model.norm.weight", ones(width)


def _config(shape: RandomModel) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
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
