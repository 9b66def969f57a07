"""What is wrong with a model folder, found without loading its weights: in seconds, from anywhere.

Every line begins with the file, and says what is expected and what to do. What only the values of
the weights tell is left to the stage that copies them (`tasks/base/body.py`).

The tokenizer and the chat template are tried on what training asks of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engines.families.common.family import ModelShape
from engines.families.common.model_config import parse_config
from engines.families.common.registry import model_shape
from engines.types import Message, Problem, Tool, ToolCall
from infra.data_files.heads import read_text
from infra.errors import InputError
from tasks.model_folder.model_files import ModelFiles, is_dist_folder
from tasks.model_folder.read_tensors import (
    StoredTensor,
    stored_tensors,
    tensor_problems,
    unused_tensors,
)

if TYPE_CHECKING:
    from engines.chat import Chat


CHAT_FILES = (
    "chat_template.jinja",
    "chat_template.json",
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
)
_TOOL = Tool("search", "Search the index.", {"q": "string"}, ("q",))
_ASKED, _ANSWERED = "Which colour?", "Red."


TEMPLATES = Path(__file__).parent / "templates"
"""chat templates that ship, for models whose own lacks tools or does not say what is learned"""


def template_text(name: str | None) -> str:
    """Return the text of a template that ships, or of a file; empty for None. Raises InputError."""
    if name is None:
        return ""
    shipped = {file.stem: file for file in sorted(TEMPLATES.glob("*.jinja"))}
    try:
        text = read_text(shipped.get(name, Path(name).expanduser()))
    except (OSError, InputError) as error:
        raise InputError(
            f"base.template: {name} cannot be read ({error}); name a file, or one that ships:"
            f" {', '.join(shipped)}"
        ) from None
    if not text.strip():
        raise InputError(f"base.template: {name} is empty; write a chat template into it")
    return text


def chat_problems(folder: Path, shape: ModelShape | None, template: str) -> Iterator[str]:
    """Why the chat parts of a local folder cannot be used, each beginning with the file."""
    from engines.chat import Chat

    try:
        chat = Chat.load(folder, template)
        yield from _too_many_tokens(chat, shape)
        for problem, turns in _conversations(chat):
            tokens, _ = chat.training_ids(problem, turns)
            yield from _left_out(chat, tokens)
    except InputError as error:
        yield str(error)


def chat_notes(folder: Path, template: str) -> Iterator[str]:
    """Yield what is good to know of chat parts that can be used, each beginning with the file."""
    from engines.chat import Chat

    yield from Chat.load(folder, template).notes()


def _too_many_tokens(chat: Chat, shape: ModelShape | None) -> Iterator[str]:
    beyond = chat.written_ids(shape.vocab) if shape is not None else []
    if shape is not None and beyond:
        yield (
            f"tokenizer.json: has token ids up to {max(beyond)}, but config.json has vocab_size"
            f" {shape.vocab}; copy the tokenizer that belongs to the model"
        )


def _left_out(chat: Chat, tokens: list[int]) -> Iterator[str]:
    text = chat.decode(tokens)
    for said in (_ASKED, _ANSWERED):
        if said not in text:
            yield (
                f"{chat.template_file}: the chat template writes {text[:60]!r} for a conversation,"
                f" without its text {said!r}; use one that writes every message's content"
            )
            return


def _conversations(chat: Chat) -> Iterator[tuple[Problem, list[Message]]]:
    """Yield what training will ask of the template: an answer, a thought, a tool's result."""
    user = (Message("user", _ASKED),)
    yield Problem("import", "import", user), [Message("assistant", _ANSWERED)]
    if chat.is_thinking_switchable:
        problem = Problem("import-thinking", "import", user, thinking=True)
        yield problem, [Message("assistant", _ANSWERED, reasoning="It is red.")]
    if chat.can_call_tools:
        if not chat.lists_tools(user, (_TOOL,)):
            user = (Message("system", f"{_TOOL.name}({', '.join(_TOOL.parameters)})"), *user)
        problem = Problem("import-tools", "import", user, tools=(_TOOL,))
        call = ToolCall(_TOOL.name, {"q": "colour"})
        yield (
            problem,
            [
                Message("assistant", "", tool_calls=(call,)),
                Message("tool", "red"),
                Message("assistant", _ANSWERED),
            ],
        )


@dataclass(frozen=True, slots=True)
class ModelReport:
    """Holds what one look at a model folder found."""

    config: Mapping[str, Any] | None
    """its config.json, if it describes a model that can be trained"""
    problems: tuple[str, ...]
    """why it cannot be used; each begins with the folder or the file"""
    notes: tuple[str, ...] = ()
    """what is good to know of it, e.g. what it holds that is not used"""
    parameters: int = 0


def report_model(url: str, template: str | None = None) -> ModelReport:
    """Look at the folder at `url` (a path or any fsspec URL), as it is used with another chat
    template if one is named.

    Raises StorageError if it is out of reach from here.
    """
    try:
        text = template_text(template)
        files = ModelFiles(url)
    except InputError as error:
        return ModelReport(None, (str(error),))
    problems: list[str] = []
    config, shape = _config(files, problems)
    is_dist = is_dist_folder(files.sizes)
    tensors = None if is_dist else _tensors(files, problems)
    if shape is not None and tensors is not None:
        problems += tensor_problems(files, tensors, shape)
    with files.on_this_machine(CHAT_FILES) as folder:
        found = list(chat_problems(folder, shape, text))
        notes = [] if found else list(chat_notes(folder, text))
    problems += found
    place = url.rstrip("/")
    return ModelReport(
        config if shape else None,
        tuple(f"{place}/{line}" for line in dict.fromkeys(problems)),
        tuple(f"{place}/{line}" for line in (*notes, *unused_tensors(tensors or {}, shape))),
        _parameters(shape) if is_dist else sum(prod(t.size) for t in (tensors or {}).values()),
    )


def _parameters(shape: ModelShape | None) -> int:
    """Count the parameters of a dist_checkpointing folder, whose weights only its import reads."""
    if shape is None:
        return 0
    return sum(prod(tensor.size(shape.axes)) for tensor in shape.expected_tensors())


def _config(
    files: ModelFiles, problems: list[str]
) -> tuple[Mapping[str, Any] | None, ModelShape | None]:
    if "config.json" not in files.sizes:
        what = "give a HF model folder"
        if is_dist_folder(files.sizes):
            what = (
                "make a HF folder of the checkpoint: tributary convert CHECKPOINT DIR --like MODEL"
            )
        problems.append(f"config.json: is missing; {what}")
        return None, None
    try:
        config = parse_config(files.read("config.json"))
        shape = model_shape(config)
    except InputError as error:
        problems.append(str(error))
        return None, None
    problems += _architecture_problems(config, shape.family.architecture)
    return config, shape


def _architecture_problems(config: Mapping[str, Any], expected: str) -> Iterator[str]:
    """A classifier or a reward model has the same `model_type` as the model it was made from."""
    named = config.get("architectures")
    if named and expected not in (named if isinstance(named, list) else ()):
        yield (
            f"config.json: architectures is {named}; {expected} is expected, a language model with"
            " no other head: give the model that this one was made from"
        )


def _tensors(files: ModelFiles, problems: list[str]) -> dict[str, StoredTensor] | None:
    try:
        return stored_tensors(files)
    except InputError as error:
        problems.append(str(error))
        return None
