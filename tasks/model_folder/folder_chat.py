"""Whether a model folder's tokenizer and chat template can do what training asks of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from engines.families.common.family import ModelShape
from engines.types import Message, Problem, Tool, ToolCall
from infra.data_files.heads import read_text
from infra.errors import InputError

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
    """Of a template that ships, or of a file; empty for None. Raises InputError."""
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
    """What is good to know of chat parts that can be used, each beginning with the file."""
    from engines.chat import Chat

    yield from Chat.load(folder, template).notes()


def _too_many_tokens(chat: Chat, shape: ModelShape | None) -> Iterator[str]:
    last = max(chat.vocabulary.values(), default=-1)
    if shape is not None and last >= shape.vocab:
        yield (
            f"tokenizer.json: has token ids up to {last}, but config.json has vocab_size"
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
    """What training will ask of the template: an answer, a thought, a tool's result."""
    user = (Message("user", _ASKED),)
    yield Problem("import", "import", user), [Message("assistant", _ANSWERED)]
    if chat.is_thinking_switchable:
        problem = Problem("import-thinking", "import", user, thinking=True)
        yield problem, [Message("assistant", _ANSWERED, reasoning="It is red.")]
    if chat.can_call_tools:
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
