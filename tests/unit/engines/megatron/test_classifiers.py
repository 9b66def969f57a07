"""Reward models and critics of every family name the class by which transformers loads them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from engines.families.common.registry import all_families, check_reward_model
from engines.megatron.hf.folder import HfWeights, write_head_folder
from flows.checks.engines import trainer_problems
from flows.load import load_recipe
from flows.post_train import plan_post_train
from infra.errors import InputError
from tests.parts.tiny import tiny_model

pytestmark = pytest.mark.unit
FAMILIES = all_families()


@pytest.mark.parametrize("name", FAMILIES)
def test_classifiers_are_those_that_transformers_loads(name: str) -> None:
    from transformers.models.auto import modeling_auto

    family = FAMILIES[name]
    pairs = modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES
    tokens = modeling_auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES
    assert family.classifier("SequenceClassification") == pairs.get(name)
    assert family.classifier("TokenClassification") == tokens.get(name)


def test_a_reward_model_that_nothing_could_load_is_refused(tmp_path: Path) -> None:
    check_reward_model({"model_type": "qwen3_5_text"})
    with pytest.raises(InputError, match="no sequence classifier of glm4_moe, so that nothing"):
        check_reward_model({"model_type": "glm4_moe"})
    folder = tiny_model(tmp_path, "glm4_moe")
    recipe = load_recipe("general", [f"base={{folder: {folder}}}"])
    said = {stage.name: list(trainer_problems(recipe, stage)) for stage in plan_post_train(recipe)}
    refused = [name for name, lines in said.items() if "no sequence classifier" in str(lines)]
    assert refused == [s.name for s in plan_post_train(recipe) if s.spec.kind == "reward"]
    assert refused


def test_value_heads_of_delta_nets_are_named_as_transformers_does(tmp_path: Path) -> None:
    """Its class without `Text` in its name is of models that see images, and no class is of
    values: none is named that transformers would look for."""
    import transformers

    source = HfWeights(tiny_model(tmp_path / "source", "qwen3_5_text"))
    names = [name for name in source.file_of if name != "lm_head.weight"]
    trunk = {name: source.read(name) for name in names}
    width = trunk["model.norm.weight"].shape[0]
    tensors = {**trunk, "score.weight": torch.randn(1, width)}
    write_head_folder(tmp_path / "reward", tensors, source, "SequenceClassification", "reward")
    (named,) = json.loads((tmp_path / "reward/config.json").read_text())["architectures"]
    loaded, found = getattr(transformers, named).from_pretrained(
        tmp_path / "reward", output_loading_info=True
    )
    assert not any(found.values())
    assert torch.equal(loaded.score.weight, tensors["score.weight"])
    write_head_folder(tmp_path / "critic", tensors, source, "TokenClassification", "value")
    assert json.loads((tmp_path / "critic/config.json").read_text())["architectures"] is None
