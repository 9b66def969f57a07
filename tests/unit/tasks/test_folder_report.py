"""Chat parts of a model folder, as real folders have them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer

from engines.families.common.registry import model_shape
from tasks.model_folder.folder_report import chat_notes, chat_problems
from tests.parts.chat_parts import chat_folder
from tests.parts.families import SIZES

pytestmark = pytest.mark.unit
SPECIAL = ["<|start|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|end|>"]
PLAIN = (
    "{% for m in messages %}<|{{ m.role if m.role != 'system' else 'user' }}|>{{ m.content }}"
    "{% if m.tool_calls %}{% for c in m.tool_calls %}<tool_call>{{ {'name': c.function.name,"
    " 'arguments': c.function.arguments} | tojson }}</tool_call>{% endfor %}{% endif %}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def test_a_template_that_writes_calls_and_lists_no_tools_can_be_used(tmp_path: Path):
    """DeepSeek's: tools stand in a system message."""
    folder = chat_folder(tmp_path, PLAIN, SPECIAL, "<|end|>")
    assert [*chat_problems(folder, None, "")] == []
    (note,) = chat_notes(folder, "")
    assert "lists no tools: where there are tools, a system message has to name each" in note


def test_a_control_token_may_lie_beyond_the_models_vocabulary(tmp_path: Path):
    """Gemma 3's `<image_soft_token>`: no text has it. A token of texts, or an end, may not."""
    folder = chat_folder(tmp_path, PLAIN, SPECIAL, "<|end|>")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    size = tokenizer.get_vocab_size()
    tokenizer.add_special_tokens([AddedToken("<image_soft_token>", special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    shape = replace(model_shape({"model_type": "llama", **SIZES}), vocab=size)
    assert [*chat_problems(folder, shape, "")] == []
    (problem,) = chat_problems(folder, replace(shape, vocab=size - 1), "")
    assert f"has token ids up to {size - 1}, but config.json has vocab_size {size - 1}" in problem
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["eos_token"] = "<image_soft_token>"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (problem,) = chat_problems(folder, shape, "")
    assert f"has token ids up to {size}" in problem


def test_templates_beside_the_default_one_are_named(tmp_path: Path):
    folder = chat_folder(tmp_path, PLAIN, SPECIAL, "<|end|>")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    named = {"default": settings["chat_template"], "tool_use": "{{ tools }}"}
    settings["chat_template"] = [{"name": n, "template": t} for n, t in named.items()]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    said = " ".join(chat_notes(folder, ""))
    assert "has the chat templates `default` and `tool_use`; `default` is used, with tools" in said
