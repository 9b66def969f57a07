"""What config.json says of the mathematics is done as transformers does it, or refused by name."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from engines.families.common.family import ModelShape
from engines.families.common.registry import family_names, model_shape
from engines.megatron.hf.folder import HfWeights
from engines.megatron.hf.layout import load_weights
from engines.megatron.model import build_model, transformer_config
from engines.megatron.parallel import current_layout, one_rank
from engines.megatron.spec import Parallel
from engines.megatron.train.checkpoint import seed_all
from engines.megatron.train.pack import FlatSequences, build_pack
from infra.errors import InputError
from tests.parts.families import EXAMPLES, SIZES, all_fields

pytestmark = pytest.mark.integration
TEXTS = [[(7 * i + 3 * j * j + j) % 96 for j in range(n)] for i, n in enumerate((30, 11, 25))]
LEFT_OUT = object()
WINDOWED, WHOLE = "sliding_attention", "full_attention"
YARN = {
    "rope_type": "yarn",
    "rope_theta": 500.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
OLD_YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
HALF = {"rope_type": "default", "rope_theta": 77.0, "partial_rotary_factor": 0.5}
FIELDS: list[dict[str, Any]] = [
    {},
    {"hidden_act": "gelu"},
    {"head_dim": 2},
    {"head_dim": 10},
    {"attention_bias": True},
    {"is_causal": False},
    {"tie_word_embeddings": True},
    {"num_key_value_heads": 1},
    {"layer_types": [WINDOWED, WHOLE] * 2, "sliding_window": 5},
    {"layer_types": None, "sliding_window": 5},
    {"layer_types": LEFT_OUT, "full_attention_interval": 2},
    {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2},
    {"rope_parameters": LEFT_OUT},
    {"rope_parameters": LEFT_OUT, "rope_theta": 500.0},
    {"rope_parameters": LEFT_OUT, "rope_theta": 500.0, "rope_scaling": OLD_YARN},
    {"rope_parameters": {}},
    {"rope_parameters": HALF},
    {"rope_parameters": HALF, "partial_rotary_factor": 0.25},
    {"partial_rotary_factor": None},
    {"partial_rotary_factor": 0.6},
    {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 77.0}},
    {"rope_parameters": YARN},
    {"rope_parameters": YARN | {"truncate": None}},
    {"rope_parameters": YARN | {"beta_fast": 1.0, "beta_slow": 8.0}},
    {"rope_parameters": YARN | {"attention_factor": 1.5}},
    {"swiglu_limit": 0.3},
    {"query_pre_attn_scalar": 5},
    {"final_logit_softcapping": 1.0},
    {"num_experts_per_tok": 1},
    {"norm_topk_prob": False},
    {"routed_scaling_factor": 0.5},
    {"moe_intermediate_size": 16},
    {"mlp_only_layers": [1]},
    {"first_k_dense_replace": 2},
]
"""changes of a model's config.json; of most families some change nothing, in transformers either"""


@pytest.fixture(scope="module", autouse=True)
def rank() -> Iterator[None]:
    with one_rank():
        seed_all(0)
        yield


def written(config: dict[str, Any], folder: Path) -> Any:
    """Write a random model of this very config.json, and return it as transformers reads it."""
    from transformers import AutoConfig, AutoModelForCausalLM

    file = folder / "config.json"
    file.write_text(json.dumps(config))
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)).float()
    with torch.no_grad():
        for parameter in model.parameters():
            noise = 0.1 * torch.randn(parameter.shape)
            parameter.copy_(parameter + noise if parameter.dim() == 1 else parameter * 4)
    model.save_pretrained(folder)
    file.write_text(json.dumps(config))
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def logits_of(shape: ModelShape, folder: Path) -> torch.Tensor:
    """[R, V] of Megatron-core, of every token but each text's last."""
    layout, weights = current_layout(Parallel()), HfWeights(folder)
    model = build_model(shape, transformer_config(shape, layout, "fp32", {}), layout)
    load_weights(model, shape, layout, weights.read, weights.file_of)
    flat = FlatSequences.of(TEXTS, [[1] * len(text) for text in TEXTS])
    pack = build_pack(flat, list(range(len(TEXTS))), layout)
    with torch.no_grad():
        return model(pack.input_ids, None, None, packed_seq_params=pack)


def outcome(config: dict[str, Any], folder: Path) -> str:
    """Return what becomes of a model with this config.json."""
    try:
        shape = model_shape(config)
    except InputError as error:
        return "refused" if str(error).startswith("config.json: ") else str(error)
    try:
        reference = written(config, folder)
        with torch.no_grad():
            expected = [reference(torch.tensor([text])).logits[0, :-1] for text in TEXTS]
    except Exception:  # whatever a strange value leads transformers to
        return "not run by transformers"
    apart = (logits_of(shape, folder) - torch.cat(expected)).abs().max()
    return "the same" if apart < 1e-4 else f"{float(apart)} apart"


def changed(config: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    both = {**config, **fields}
    return {key: value for key, value in both.items() if value is not LEFT_OUT}


@pytest.mark.parametrize("family", family_names())
def test_no_field_is_ignored_without_a_word(family: str, tmp_path: Path) -> None:
    is_tied = bool(EXAMPLES[family].windows)
    config = {"model_type": family, **SIZES, **all_fields(family), "tie_word_embeddings": is_tied}
    config |= {"pad_token_id": None}  # some families' own is beyond so small a vocabulary
    found = [outcome(changed(config, fields), tmp_path) for fields in FIELDS]
    known = ("the same", "refused", "not run by transformers")
    assert [pair for pair in zip(FIELDS, found, strict=True) if pair[1] not in known] == []
    assert found[0] == "the same"
    assert found.count("the same") > len(FIELDS) // 4
    assert found.count("not run by transformers") < 4
