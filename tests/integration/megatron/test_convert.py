"""HF to Megatron's dist_checkpointing and back: the same bits, and the same logits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engines.megatron.hf.dist_folder import DistWeights
from engines.megatron.hf.folder import HfWeights
from flows.command.main import main
from tasks.base.import_folder import import_model
from tasks.durable.stage_identity import folder_fingerprint
from tasks.model_folder.folder_report import report_model
from tests.integration.megatron.megatron_models import make_model
from tests.parts.chat_parts import random_base
from tests.parts.seeing import seeing_folder
from tests.parts.tiny import tiny_model

pytestmark = pytest.mark.integration


def command(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return int(ended.value.code or 0)


def assert_same_weights(one: Path, other: Path) -> None:
    import torch

    first, second = HfWeights(one), HfWeights(other)
    assert set(first.file_of) == set(second.file_of)
    for name in first.file_of:
        assert torch.equal(first.read(name), second.read(name)), name


@pytest.mark.parametrize(
    "name",
    ["gemma3_text", "glm4", "olmo2", "phi3", "qwen3_moe", "deepseek_v3", "gpt_oss", "qwen3_5_text"],
)
def test_a_model_goes_there_and_back(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_model(name, tmp_path / "hf")
    assert command("convert", tmp_path / "hf", tmp_path / "dist") == 0
    assert command("convert", tmp_path / "dist", tmp_path / "back") == 0
    assert_same_weights(tmp_path / "hf", tmp_path / "back")
    told = capsys.readouterr().out.replace("\n", " ")
    differences = [float(part.split()[0]) for part in told.split("at most ")[1:]]
    assert len(differences) == 2
    assert max(differences) < 2e-4, told


def test_a_model_that_sees_images_becomes_its_text_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is left out is said, and what is written goes to Megatron as any other model."""
    seeing_folder(tmp_path / "seeing")
    refused = report_model(str(tmp_path / "seeing")).problems
    assert any("`tributary convert FOLDER NEW` writes its text model" in line for line in refused)
    assert command("convert", tmp_path / "seeing", tmp_path / "text") == 0
    told = capsys.readouterr().out.replace("\n", " ")
    assert "the text model, without the" in told
    assert "tensors that see images" in told
    config = json.loads((tmp_path / "text/config.json").read_text())
    assert config["model_type"] == "qwen3_5_text"
    assert command("convert", tmp_path / "text", tmp_path / "dist") == 0
    told = capsys.readouterr().out.replace("\n", " ")
    left_out = "left out: 1 tensor (mtp.fc.weight) of layers for multi-token prediction"
    assert left_out in told
    like = ("--like", tmp_path / "text")
    assert command("convert", tmp_path / "dist", tmp_path / "back", *like) == 0
    assert left_out in capsys.readouterr().out.replace("\n", " ")


def test_what_config_json_does_not_describe_is_not_left_out_without_a_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from safetensors.torch import load_file, save_file

    folder = tiny_model(tmp_path / "hf", "gpt_oss")
    file = folder / "model.safetensors"
    tensors = load_file(file)
    stacked = tensors.pop("model.layers.0.mlp.experts.down_proj")
    names = [f"model.layers.0.mlp.experts.{n}.down_proj.weight" for n in range(len(stacked))]
    one_by_one = {name: own.T.contiguous() for name, own in zip(names, stacked, strict=True)}
    save_file(tensors | one_by_one, file, metadata={"format": "pt"})
    assert command("convert", folder, tmp_path / "dist") == 2
    told = capsys.readouterr().err.replace("\n", " ")
    assert "lacks 1 tensor (model.layers.0.mlp.experts.down_proj)" in told
    save_file(load_file(file) | {"model.layers.0.mlp.experts.down_proj": stacked}, file)
    assert command("convert", folder, tmp_path / "dist") == 2
    told = capsys.readouterr().err.replace("\n", " ")
    assert "which config.json does not describe" in told


def stored_otherwise(dist: Path, folder: Path, num_layers: int) -> None:
    """The same weights as Megatron-LM may have them: a tensor a layer, norms by Transformer
    Engine's names, and a vocabulary that is padded."""
    import torch
    from torch.distributed.checkpoint import FileSystemWriter, save

    weights = DistWeights(dist)
    renamed = {
        "input_layernorm.weight": "self_attention.linear_qkv.layer_norm_weight",
        "pre_mlp_layernorm.weight": "mlp.linear_fc1.layer_norm_weight",
    }
    state: dict[str, torch.Tensor] = {}
    for key in weights.sizes:
        if not key.startswith("decoder.layers."):
            whole = weights.read(key, None, num_layers)
            padding = torch.ones(64, *whole.shape[1:])
            state[key] = torch.cat([whole, padding]) if "embedding" in key else whole
            continue
        name = key.removeprefix("decoder.layers.")
        for layer in range(num_layers):
            stored = weights.read(name, layer, num_layers)
            state[f"decoder.layers.{layer}.{renamed.get(name, name)}"] = stored
    save(state, storage_writer=FileSystemWriter(folder), no_dist=True)
    (folder / "metadata.json").write_text(json.dumps({"sharded_backend": "torch_dist"}))


def test_a_checkpoint_of_others_takes_its_configuration_from_a_model_like_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hf = tiny_model(tmp_path / "hf")
    assert command("convert", hf, tmp_path / "dist") == 0
    stored_otherwise(tmp_path / "dist", tmp_path / "theirs", 4)
    assert command("convert", tmp_path / "theirs", tmp_path / "back") == 2
    assert "name a model with its configuration" in capsys.readouterr().err
    other = tiny_model(tmp_path / "other", num_hidden_layers=5)
    assert command("convert", tmp_path / "theirs", tmp_path / "back", "--like", other) == 2
    assert "lacks" in capsys.readouterr().err
    assert not (tmp_path / "back").exists()
    assert command("convert", tmp_path / "theirs", tmp_path / "back", "--like", hf) == 0
    assert_same_weights(hf, tmp_path / "back")
    assert (tmp_path / "back" / "tokenizer.json").is_file()
    assert command("convert", hf, tmp_path / "back") == 2
    assert "is not empty" in capsys.readouterr().err


def test_a_dist_folder_is_a_base(tmp_path: Path) -> None:
    hf = random_base(tmp_path / "hf")
    assert command("convert", hf, tmp_path / "dist") == 0
    report = report_model(str(tmp_path / "dist"))
    assert report.problems == ()
    assert report.parameters == report_model(str(hf)).parameters
    assert folder_fingerprint(str(tmp_path / "dist")) != folder_fingerprint(str(hf))
    (tmp_path / "base").mkdir()
    import_model(str(tmp_path / "dist"), tmp_path / "base")
    assert_same_weights(hf, tmp_path / "base")
    assert (tmp_path / "base" / "chat_template.jinja").is_file()
    assert not (tmp_path / "base" / "metadata.json").exists()
    (tmp_path / "dist" / "config.json").unlink()
    (told,) = [p for p in report_model(str(tmp_path / "dist")).problems if "config.json" in p]
    assert "tributary convert" in told
