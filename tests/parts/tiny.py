"""Tiny random models as HF folders, for tests of the real engines.

A model has the demo's shape: width 128, 4 layers, 4 heads over 2 key-value heads of 32, vocabulary
512, fp32, tied embeddings; 0.66M parameters for Qwen3.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from tests.parts.families import EXAMPLES

VOCABULARY = 512
END_TOKEN = 257
"""`<|endoftext|>`, also the end of a turn"""
_END = "eos_token_id"
_SPECIAL = (
    "<|pad|>",
    "<|endoftext|>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
    "<think>",
    "</think>",
)


def tiny_model(folder: Path, family: str = "qwen3", seed: int = 0, **config: Any) -> Path:
    """Write a random model and a byte-level tokenizer to `folder`; returns the folder.

    `config` overrides fields of the HF config, e.g. `num_hidden_layers=2`.
    """
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    torch.manual_seed(seed)
    made = _config(family, config)
    model = AutoModelForCausalLM.from_config(made).to(made.dtype)
    model.generation_config = GenerationConfig(eos_token_id=END_TOKEN, pad_token_id=256)
    model.save_pretrained(folder)
    _tokenizer().save_pretrained(folder)
    return folder


def without_end(model: Path, copy: Path) -> Path:
    """A copy of a model's folder with which no token ends a turn by itself; returns the copy."""
    shutil.copytree(model, copy)
    for name in ("config.json", "generation_config.json"):
        fields = json.loads((copy / name).read_text())
        # A field that is left out is the family's default: of Llama's token 2.
        (copy / name).write_text(json.dumps(fields | {_END: None}))
    return copy


def _config(family: str, overrides: dict[str, Any]) -> Any:
    from transformers import AutoConfig

    fields: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 256,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
        "dtype": "float32",
        # wide enough that different weights choose visibly different tokens
        "initializer_range": 0.08,
        "bos_token_id": None,
        "eos_token_id": END_TOKEN,
        "pad_token_id": 256,
    }
    if family == "qwen3":  # which would fill in 128
        fields["head_dim"] = 32
    if family in EXAMPLES:
        example = EXAMPLES[family]
        fields |= {**example.experts, **example.windows, **example.delta}
    return AutoConfig.for_model(family, **(fields | overrides))


def _tokenizer() -> Any:
    """256 bytes, 8 special tokens, unused fillers up to the vocabulary's size."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: i for i, character in enumerate(alphabet)}
    for name in _SPECIAL:
        vocabulary[name] = len(vocabulary)
    while len(vocabulary) < VOCABULARY:
        vocabulary[f"<|unused_{len(vocabulary)}|>"] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in _SPECIAL])
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|endoftext|>", pad_token="<|pad|>"
    )
    wrapped.chat_template = (
        "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|endoftext|>{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    return wrapped
