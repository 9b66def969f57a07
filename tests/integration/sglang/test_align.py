"""Trainer, SGLang and transformers agree on tiny models of unlike families, module by module, and a
server that has another weight is found out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engines.align.compared_programs import BOUNDS, compare, run_all
from engines.align.points import ORDER
from engines.devices.child_processes import ChildProcesses
from engines.sglang.servers.slots import LAUNCHER
from tests.integration.conftest import SglangPair
from tests.integration.megatron.megatron_models import make_model

pytestmark = pytest.mark.integration


@pytest.fixture
def children(running_pair: SglangPair) -> ChildProcesses:
    return running_pair.slots._agent.children(LAUNCHER)


@pytest.mark.parametrize(
    "family", [pytest.param("gemma3_text", marks=pytest.mark.long), "deepseek_v3"]
)
def test_the_programs_agree_module_by_module(
    family: str, children: ChildProcesses, tmp_path: Path
) -> None:
    make_model(family, tmp_path)
    found = compare(run_all(tmp_path, 32, "fp32", children=children), BOUNDS["fp32"])
    assert found.first is None, found.sentence()
    assert {each.layer for each in found.differences} == {None, 0, 1, 2, 3}
    points = {each.point for each in found.differences if len(each.between) == 3}
    latent = {"self_attn.q_a_proj", "self_attn.kv_a_proj_with_mqa", "self_attn.q_b_proj"}
    other = {f"self_attn.{name}_proj" for name in "qkv"}
    is_latent = family == "deepseek_v3"
    missing = other if is_latent else {*latent, "mlp.gate"}
    assert points == {*ORDER, "embed_tokens", "norm", "logits"} - missing


@pytest.mark.parametrize("planted", ["o_proj", "rope"])
def test_a_server_with_another_weight_or_angle_is_found_at_its_module(
    planted: str, children: ChildProcesses, tmp_path: Path
) -> None:
    ours, served = tmp_path / "ours", tmp_path / "served"
    for folder in (ours, served):
        make_model("qwen3_moe", folder)
    if planted == "o_proj":
        file, name = served / "model.safetensors", "model.layers.1.self_attn.o_proj.weight"
        tensors = load_file(file)
        tensors[name] = tensors[name] + 0.01 * torch.eye(*tensors[name].shape)
        save_file(tensors, file, metadata={"format": "pt"})
    else:
        config = json.loads((served / "config.json").read_text())
        config["rope_parameters"]["rope_theta"] = 500.0
        (served / "config.json").write_text(json.dumps(config))
    found = compare(run_all(ours, 32, "fp32", served=served, children=children), BOUNDS["fp32"])
    assert found.first is not None
    wanted = (1, "self_attn.o_proj") if planted == "o_proj" else (0, "attention")
    assert (found.first.layer, found.first.point) == wanted
    assert found.first.odd_one(found.bound) == "engine"
