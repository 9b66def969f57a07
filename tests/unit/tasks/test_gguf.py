"""Models in GGUF files: what is read of them, and what is refused by name."""

from __future__ import annotations

import json
import shutil
import struct
from collections import namedtuple
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import fsspec
import gguf
import numpy as np
import pytest
from pydantic import ValidationError
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from engines.chat import Chat
from engines.families.common.model_config import Rope
from engines.types import Message, Problem, ToolCall
from flows.command.models.card import licence_of
from flows.command.models.named_artifacts import find_named_model
from infra.errors import InputError
from infra.hub import front_matter
from tasks.base.import_folder import import_model
from tasks.base.spec import BaseSettings, BaseSpec, RandomModel
from tasks.durable.stage_identity import spec_content
from tasks.model_folder.folder_report import report_model, template_text
from tasks.model_folder.gguf_folder import gguf_folder
from tasks.model_folder.gguf_tokenizer import _merges
from tests.parts.chat_parts import QWEN_TOKENS, SEARCH, chat_folder
from tests.parts.tiny import tiny_model

pytestmark = pytest.mark.unit

TEXTS = ("It's 1234 apples,  isn't it?\n\n Was  für'n Tag: 7½ €", "<|user|>def f(x): return x")
QUANTISED = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "MXFP4")
"""all that the writer can make of a small model"""
MERGES = [("p", "p"), ("a", "pp"), ("Ġ", "app")]


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path / "home"))
    gguf_folder.cache_clear()


def write_gguf(
    file: Path,
    model: Path,
    kind: str = "F32",
    *,
    fields: Mapping[str, Any] | None = None,
    tensors: Mapping[str, np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
    """The model of an HF folder as llama.cpp's converter writes it; returns the numbers that its
    weights stand for, by their HF names. `fields` and `tensors` are added to it."""
    config = json.loads((model / "config.json").read_text())
    family, layers = config["model_type"], config["num_hidden_layers"]
    writer = gguf.GGUFWriter(file, family)
    writer.add_name("A small model")
    writer.add_license("apache-2.0")
    writer.add_block_count(layers)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    if config.get("head_dim"):
        writer.add_key_length(config["head_dim"])
    _write_tokenizer(writer, model, config["vocab_size"])
    for name, value in (fields or {}).items():
        add: Callable[[str, Any], None] = (
            writer.add_string if isinstance(value, str) else writer.add_float32
        )
        add(name.format(family), value)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[family.upper()], layers)
    meant: dict[str, np.ndarray] = {}
    for name, values in load_file(model / "model.safetensors").items():
        of_gguf = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert of_gguf is not None, name
        heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
        field = heads.get(name.split(".")[-2]) if family == "llama" else None
        meant[name] = _add(writer, of_gguf, values, kind, config[field] if field else 0)
    for name, values in (tensors or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return meant


def _add(writer: Any, name: str, values: np.ndarray, kind: str, heads: int) -> np.ndarray:
    """Rows of a llama's queries and keys are reordered first; returns what was stored, in order."""
    if values.ndim == 1 or kind == "F32":
        stored, qtype = values, gguf.GGMLQuantizationType.F32
    else:
        qtype = gguf.GGMLQuantizationType[kind]
        stored = values
    order = np.arange(len(values))
    if heads:  # as convert_hf_to_gguf.py permutes
        order = order.reshape(heads, 2, len(values) // heads // 2).swapaxes(1, 2).reshape(-1)
    stored = stored[order]
    if kind == "F32" or values.ndim == 1:
        writer.add_tensor(name, stored)
        return values
    packed = gguf.quants.quantize(stored, qtype)
    writer.add_tensor(name, packed, raw_dtype=qtype)
    meant = np.empty_like(values)
    meant[order] = gguf.quants.dequantize(packed, qtype)
    return meant


def _write_tokenizer(writer: Any, model: Path, vocab: int) -> None:
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    ids: dict[str, int] = tokenizer["model"]["vocab"]
    special = {token["id"]: token["content"] for token in tokenizer["added_tokens"]}
    texts = {number: text for text, number in ids.items()} | special
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([texts.get(n, f"[PAD{n}]") for n in range(vocab)])
    writer.add_token_types([3 if n in special else 1 if n in texts else 5 for n in range(vocab)])
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_eos_token_id(257)
    writer.add_pad_token_id(256)
    writer.add_chat_template((model / "chat_template.jinja").read_text())


def small_model(folder: Path, family: str) -> Path:
    """With words that are merged from parts, and tokens that only fill up the embedding."""
    model = tiny_model(folder, family, num_hidden_layers=2)
    content = json.loads((model / "tokenizer.json").read_text())
    ids = content["model"]["vocab"]
    for left, right in MERGES:
        ids[left + right] = ids.pop(f"<|unused_{len(content['model']['merges']) + 264}|>")
        content["model"]["merges"].append([left, right])
    content["model"]["vocab"] = {t: n for t, n in ids.items() if not t.startswith("<|unused")}
    (model / "tokenizer.json").write_text(json.dumps(content))
    return model


@pytest.mark.parametrize("family", ["llama", "phi3", "qwen2", "qwen3"])
def test_a_file_in_float32_becomes_the_folder_that_it_was_made_from(family: str, tmp_path: Path):
    model = small_model(tmp_path / "model", family)
    write_gguf(tmp_path / "m.gguf", model)
    report = report_model(str(tmp_path / "m.gguf"))
    assert report.problems == ()
    made = find_named_model(str(tmp_path / "m.gguf"), "").folder
    was, now = (load_file(each / "model.safetensors") for each in (model, made))
    assert was.keys() == now.keys()
    assert all((was[name] == now[name]).all() for name in was)
    old, new = (Tokenizer.from_file(str(each / "tokenizer.json")) for each in (model, made))
    assert [old.encode(text).ids for text in TEXTS] == [new.encode(text).ids for text in TEXTS]
    assert "Ġapp" in new.encode(TEXTS[0]).tokens
    assert new.decode(new.encode(TEXTS[0]).ids) == TEXTS[0]
    assert licence_of(made) == "apache-2.0"
    before, after = (json.loads((each / "config.json").read_text()) for each in (model, made))
    same = ("rms_norm_eps", "num_key_value_heads", "tie_word_embeddings", "eos_token_id", "dtype")
    assert [after[name] for name in same] == [before[name] for name in same]


@pytest.mark.parametrize("kind", [*QUANTISED, "F16", "BF16"])
def test_logits_are_those_of_the_numbers_that_a_quantised_file_stands_for(
    kind: str, tmp_path: Path
):
    import torch
    from transformers import AutoModelForCausalLM

    model = small_model(tmp_path / "model", "llama")
    meant = write_gguf(tmp_path / "m.gguf", model, kind)
    import_model(str(tmp_path / "m.gguf"), (out := tmp_path / "out", out.mkdir())[0])
    save_file(meant, model / "model.safetensors", metadata={"format": "pt"})
    tokens = torch.arange(24).reshape(2, 12)
    logits = [
        AutoModelForCausalLM.from_pretrained(each, dtype=torch.float32)(tokens).logits
        for each in (model, out)
    ]
    assert torch.equal(*logits)
    dtype = json.loads((out / "config.json").read_text())["dtype"]
    assert dtype == {"F16": "float16", "BF16": "bfloat16"}.get(kind, "float32")


def _refused(file: Path) -> str:
    (problem,) = report_model(str(file)).problems
    assert problem.startswith(str(file))
    return problem.removeprefix(f"{file}: ")


@pytest.mark.parametrize(
    ("fields", "tensors", "told"),
    [
        ({"general.architecture": "olmo2"}, (), "architecture 'olmo2'; supported are llama, phi3"),
        ({"{}.rope.scaling.type": "yarn"}, (), "rope type 'yarn' lacks original_max"),
        ({"tokenizer.ggml.pre": "grok-2"}, (), "splits texts in the way 'grok-2'; known are gpt-2"),
        ({"tokenizer.ggml.model": "t5"}, (), "its tokenizer is of the kind 't5'; gpt2 and llama"),
        ({}, ("blk.0.attn_q.bias",), "holds 1 tensors that a llama of ours does not have"),
        ({}, ("rope_freqs.weight",), "rope_freqs.weight is not the scaling of Llama 3"),
    ],
)
def test_what_cannot_be_trained_is_refused_by_name(
    fields: dict[str, str], tensors: tuple[str, ...], told: str, tmp_path: Path
):
    file = tmp_path / "m.gguf"
    more = {name: np.full(16, 3.0, np.float32) for name in tensors}
    write_gguf(file, small_model(tmp_path / "model", "llama"), fields=fields, tensors=more)
    assert told in _refused(file)


def test_a_file_that_is_none_or_is_cut_short_or_missing_is_refused(tmp_path: Path):
    file = tmp_path / "m.gguf"
    assert "is missing; name a GGUF file" in " ".join(report_model(str(file)).problems)
    file.write_bytes(b"something else, and long enough to be looked at")
    assert "is text" in _refused(file)
    write_gguf(file, small_model(tmp_path / "model", "llama"))
    file.write_bytes(file.read_bytes()[:-1000])
    gguf_folder.cache_clear()
    assert "is no whole GGUF file" in _refused(file)


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def _head(*, tensors: int = 0, fields: int = 1) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, fields)


def _array(kind: int, length: int) -> bytes:
    return _text("general.x") + struct.pack("<IIQ", 9, kind, length)


ENDLESS = {
    "numbers": _head() + _array(0, 1 << 62),
    "texts": _head() + _array(8, 1 << 62),
    "lists": _head() + _array(9, 1) + struct.pack("<IQ", 9, 1) * 9999,
    "fields": _head(fields=1 << 63),
    "tensors": _head(tensors=1 << 63, fields=0),
    "axes": _head(tensors=1, fields=0) + _text("x") + struct.pack("<I", 1 << 31) + bytes(64),
    "values": _head() + _array(0, 3000) + bytes(3000),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_a_head_that_tells_of_more_than_there_is_fills_no_memory(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tasks.model_folder.gguf_folder._MOST_VALUES", 1000)
    (tmp_path / "m.gguf").write_bytes(ENDLESS[name])
    assert "is no whole GGUF file" in _refused(tmp_path / "m.gguf")


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("{}.block_count", 1e18, "describes 999999984306749440 layers"),
        ("{}.block_count", "many", "is no whole GGUF file"),
        ("{}.attention.head_count", float("nan"), "is no whole GGUF file"),
        ("{}.attention.head_count", -1.0, "num_attention_heads must be a positive integer"),
        ("{}.embedding_length", float("inf"), "is no whole GGUF file"),
        ("tokenizer.ggml.tokens", "abc", "is no whole GGUF file"),
        ("tokenizer.ggml.merges", "abc", "is no whole GGUF file"),
        ("tokenizer.ggml.eos_token_id", 1e9, "its eos token 1000000000 is none of 512 tokens"),
        ("tokenizer.chat_template", 1.0, "is no whole GGUF file"),
    ],
)
def test_a_value_that_no_model_has_is_refused(
    field: str, value: str | float, told: str, tmp_path: Path
):
    write_gguf(tmp_path / "m.gguf", small_model(tmp_path / "model", "llama"), fields={field: value})
    assert told in _refused(tmp_path / "m.gguf")


def test_tensors_that_share_their_bytes_are_refused(tmp_path: Path):
    """A small file would be written out as large as a disk."""
    file = tmp_path / "m.gguf"
    write_gguf(file, small_model(tmp_path / "model", "llama"))
    content = file.read_bytes()
    offsets = [tensor.field.parts[-1][0] for tensor in gguf.GGUFReader(file).tensors]
    for offset in offsets[1:]:
        at = content.rindex(struct.pack("<Q", offset), 0, gguf.GGUFReader(file).data_offset)
        content = content[:at] + bytes(8) + content[at + 8 :]
    file.write_bytes(content[: len(content) // 2])
    assert "its tensors lie over each other" in _refused(file)


def test_nothing_that_is_fetched_or_converted_fills_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with fsspec.open("memory://far/endless.gguf", "wb") as far:
        far.write(b"GGUF" + b"\0" * (1 << 22))
    write_gguf(tmp_path / "m.gguf", small_model(tmp_path / "model", "llama"))
    Usage = namedtuple("Usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Usage(9999))
    assert "endless.gguf has more than 9e-06 GB" in _refused("memory://far/endless.gguf")
    kept = tmp_path / "home" / "cache" / "models"
    assert [file for file in kept.rglob("endless*") if file.is_file()] == []
    assert "its weights, written out, has more" in _refused(tmp_path / "m.gguf")


def test_long_pieces_of_a_vocabulary_are_not_taken_apart():
    with pytest.raises(InputError, match="longer pieces than any"):
        list(_merges({"x" * 40_000: 0}, {}))


def test_a_licence_of_several_lines_adds_nothing_to_the_card(tmp_path: Path):
    forged = "mit\ntags: [x]\n---\n# <script>"
    fields = {"general.license": forged, "general.name": "<img src=x>\n# Free"}
    write_gguf(tmp_path / "m.gguf", small_model(tmp_path / "model", "llama"), fields=fields)
    folder = gguf_folder(str(tmp_path / "m.gguf"))
    assert front_matter((folder / "README.md").read_text()) == {"license": forged}
    assert r"\<img" in (folder / "README.md").read_text()
    assert licence_of(folder) == forged


def test_llama_3_scaling_is_read_from_the_divisors_that_the_file_stores(tmp_path: Path):
    speeds = np.array(Rope(10000.0).inverse_frequencies(32))
    slowed = np.array(Rope(10000.0, 8.0, 1.0, 4.0, 8192).inverse_frequencies(32))
    file = tmp_path / "m.gguf"
    more = {"rope_freqs.weight": (speeds / slowed).astype(np.float32)}
    write_gguf(file, small_model(tmp_path / "model", "llama"), tensors=more)
    config = json.loads((gguf_folder(str(file)) / "config.json").read_text())
    assert config["rope_parameters"] == {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }


SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content']"
    " + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""as the model's own file has it"""


def test_the_template_that_ships_for_smollm2_writes_what_its_own_does_and_tools_too(
    tmp_path: Path,
):
    folder = chat_folder(tmp_path / "model", SMOLLM2, QWEN_TOKENS, "<|im_end|>")
    own, given = Chat.load(folder), Chat.load(folder, template_text("smollm2"))
    asked = (Message("user", "Which colour?"), Message("assistant", "Red."))
    for beginning in ((), (Message("system", "Be brief."),)):
        problem = Problem("a", "x", (*beginning, *asked, Message("user", "And that?")))
        turns = [Message("assistant", "Blue.")]
        assert own.prompt_ids(problem) == given.prompt_ids(problem)
        assert own.training_ids(problem, turns)[1] == given.training_ids(problem, turns)[1]
    assert not own.can_call_tools
    call = Message("assistant", "", tool_calls=(ToolCall("search", {"q": "colour", "n": 2}),))
    turns = [call, Message("tool", "red"), Message("assistant", "Red.")]
    with_tools = Problem("a", "x", asked[:1], tools=(SEARCH,))
    ids, mask = given.training_ids(with_tools, turns)
    learned = given.decode([token for token, kept in zip(ids, mask, strict=True) if kept])
    assert learned == (
        '<tool_call>\n{"name": "search", "arguments": {"q": "colour", "n": 2}}\n</tool_call>'
        "<|im_end|>Red.<|im_end|>"
    )


def test_a_base_gets_the_template_that_its_recipe_names(tmp_path: Path):
    model = small_model(tmp_path / "model", "llama")
    (tmp_path / "mine.jinja").write_text("{% for m in messages %}")
    told = report_model(str(model), str(tmp_path / "mine.jinja")).problems
    assert "base.template: the chat template does not compile" in told[0]
    told = report_model(str(model), "chatml").problems
    assert "base.template: chatml cannot be read" in told[0]
    assert "one that ships: smollm2" in told[0]
    mine = (model / "chat_template.jinja").read_text().replace("endoftext", "user")
    (tmp_path / "mine.jinja").write_text(mine)
    out = tmp_path / "out"
    out.mkdir()
    import_model(str(model), out, str(tmp_path / "mine.jinja"))
    assert (out / "chat_template.jinja").read_text() == mine
    shared = {"folder": str(model)}
    plain = spec_content(BaseSpec(settings=BaseSettings(**shared)))
    for name in ("smollm2", str(tmp_path / "mine.jinja")):
        spec = BaseSpec(settings=BaseSettings(**shared, template=name))
        settings = spec_content(spec)["settings"]
        assert settings == plain["settings"] | {"template": template_text(name)}
    with pytest.raises(ValidationError, match="a random base has a template of its own"):
        BaseSettings(random=RandomModel(), template="smollm2")
