"""Import of an HF folder as base: copied, and checked before any stage trusts it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from engines.megatron.hf_config import ModelShape, model_shape, read_config
from engines.types import Message, Problem, Tool, ToolCall
from infra.errors import InputError
from tasks.model_folder import expanded

if TYPE_CHECKING:
    from engines.chat import Chat

_SUFFIXES = (".json", ".safetensors", ".jinja", ".txt", ".model")
"""files of a model folder that mean something; other weight formats stay behind"""
_SHOWN = 5

_TOOL = Tool("search", "Search the index.", {"q": "string"}, ("q",))

Size = tuple[int, ...]


def import_model(url: str, folder: Path) -> dict[str, float]:
    """Copy the model folder at `url` (fsspec) and check it. Raises InputError that names what is
    missing or unsupported."""
    _copy(url, folder)
    try:
        found = check_model(folder)
    except InputError as error:
        raise InputError(f"base.folder {url} cannot be used: {error}") from error
    return {"parameters": float(sum(prod(size) for size in found.values()))}


def check_model(folder: Path) -> Mapping[str, Size]:
    """Sizes of the folder's tensors, once family, tensors, tokenizer and template are right."""
    from engines.chat import Chat

    config = read_config(folder)
    shape = model_shape(config)
    found = dict(_tensor_sizes(folder))
    _check_tensors(found, shape)
    chat = Chat.load(folder)
    if chat.num_tokens > shape.vocab:
        raise InputError(
            f"its tokenizer knows {chat.num_tokens} tokens, its config.json {shape.vocab}"
        )
    for problem, turns in _conversations(chat):
        chat.training_ids(problem, turns)
    return found


def _copy(url: str, folder: Path) -> None:
    import fsspec

    try:
        fs, root = fsspec.core.url_to_fs(expanded(url))
        names = [n for n in fs.ls(root, detail=False) if str(n).endswith(_SUFFIXES)]
        for name in names:
            fs.get_file(name, str(folder / Path(name).name))
    except (OSError, ValueError, ImportError) as error:
        raise InputError(f"base.folder {url} cannot be read: {error}") from error
    if not names:
        raise InputError(f"base.folder {url} is empty; give an HF model folder")


def _check_tensors(found: Mapping[str, Size], shape: ModelShape) -> None:
    expected = dict(expected_tensors(shape))
    missing = [name for name in expected if name not in found]
    if missing:
        raise InputError(f"it lacks {len(missing)} tensors, as {', '.join(missing[:_SHOWN])}")
    for name, size in expected.items():
        if found[name] != size:
            raise InputError(f"its tensor {name} has shape {found[name]}; config.json says {size}")


def expected_tensors(shape: ModelShape) -> Iterator[tuple[str, Size]]:
    """Name and shape of every tensor a model of this shape has."""
    width = shape.hidden
    heads, groups = shape.heads * shape.head_dim, shape.kv_groups * shape.head_dim
    yield "model.embed_tokens.weight", (shape.vocab, width)
    for layer in range(shape.num_layers):
        at = f"model.layers.{layer}"
        yield f"{at}.input_layernorm.weight", (width,)
        yield f"{at}.post_attention_layernorm.weight", (width,)
        for name, size in (("q", heads), ("k", groups), ("v", groups)):
            yield f"{at}.self_attn.{name}_proj.weight", (size, width)
            if shape.has_qkv_bias:
                yield f"{at}.self_attn.{name}_proj.bias", (size,)
        if shape.has_qk_norm:
            yield f"{at}.self_attn.q_norm.weight", (shape.head_dim,)
            yield f"{at}.self_attn.k_norm.weight", (shape.head_dim,)
        yield f"{at}.self_attn.o_proj.weight", (width, heads)
        yield f"{at}.mlp.gate_proj.weight", (shape.ffn, width)
        yield f"{at}.mlp.up_proj.weight", (shape.ffn, width)
        yield f"{at}.mlp.down_proj.weight", (width, shape.ffn)
    yield "model.norm.weight", (width,)
    if not shape.is_tied:
        yield "lm_head.weight", (shape.vocab, width)


def _tensor_sizes(folder: Path) -> Iterator[tuple[str, Size]]:
    """From the headers of the safetensors files; no weight is read."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        files = sorted({folder / f for f in json.loads(index.read_text())["weight_map"].values()})
    else:
        files = [folder / "model.safetensors"]
    for file in files:
        yield from _header(file)


def _header(file: Path) -> Iterator[tuple[str, Size]]:
    if not file.is_file():
        raise InputError(f"{file.name} is missing; weights must be in safetensors format")
    with file.open("rb") as source:
        try:
            length = int.from_bytes(source.read(8), "little")
            header = json.loads(source.read(min(length, file.stat().st_size)))
        except ValueError as error:
            raise InputError(f"{file.name} is not a safetensors file") from error
    end = max((e["data_offsets"][1] for n, e in header.items() if n != "__metadata__"), default=0)
    if 8 + length + end > file.stat().st_size:
        raise InputError(f"{file.name} is cut short: copy it again")
    for name, entry in header.items():
        if name != "__metadata__":
            yield name, tuple(entry["shape"])


def _conversations(chat: Chat) -> Iterator[tuple[Problem, list[Message]]]:
    """What training will ask of the template: an answer, a thought, a tool's result."""
    user = (Message("user", "Which colour?"),)
    yield Problem("import", "import", user), [Message("assistant", "Red.")]
    if chat.is_thinking_switchable:
        problem = Problem("import-thinking", "import", user, thinking=True)
        yield problem, [Message("assistant", "Red.", reasoning="It is red.")]
    if chat.can_call_tools:
        problem = Problem("import-tools", "import", user, tools=(_TOOL,))
        call = ToolCall(_TOOL.name, {"q": "colour"})
        yield (
            problem,
            [
                Message("assistant", "", tool_calls=(call,)),
                Message("tool", "red"),
                Message("assistant", "Red."),
            ],
        )
