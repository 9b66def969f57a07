"""What a chat needs from a model folder: tokenizer, template, special tokens, stop tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from engines.chat.template import ChatTemplate
from infra.errors import InputError

_SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")


@dataclass(frozen=True, slots=True)
class ChatFolder:
    tokenizer: Tokenizer
    template: ChatTemplate
    eos_ids: tuple[int, ...]
    """ids that end generation, as the folder declares them; the first ends a conversation"""


def load_chat_folder(folder: Path) -> ChatFolder:
    """Read the chat parts of an HF folder. Raises InputError that names what is missing."""
    tokenizer = _tokenizer(folder)
    settings = read_json(folder / "tokenizer_config.json")
    special = {k: _token_text(settings[k]) for k in _SPECIAL if settings.get(k) is not None}
    text, name = _template_text(folder, settings)
    return ChatFolder(
        tokenizer=tokenizer,
        template=ChatTemplate(text, name, special),
        eos_ids=_eos_ids(folder, tokenizer, special.get("eos_token")),
    )


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object, or an empty one where there is no such file."""
    if not path.is_file():
        return {}
    try:
        return json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise InputError(f"{path} is not JSON: {error}") from error


def _tokenizer(folder: Path) -> Tokenizer:
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise InputError(
            f"no tokenizer.json in {folder}: a model folder needs a fast tokenizer; make one with "
            "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) of transformers"
        )
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises a bare Exception
        raise InputError(f"{path} is no tokenizer: {error}") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _template_text(folder: Path, settings: Mapping[str, Any]) -> tuple[str, str]:
    """The template and where it was found, in the order that transformers looks."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(), str(path)
    for file, found in (
        ("chat_template.json", read_json(folder / "chat_template.json").get("chat_template")),
        ("tokenizer_config.json", settings.get("chat_template")),
    ):
        if isinstance(found, list):
            found = next((t["template"] for t in found if t["name"] == "default"), None)
        if isinstance(found, str):
            return found, str(folder / file)
    raise InputError(
        f"no chat template in {folder}: expected chat_template.jinja (or `chat_template` in "
        "tokenizer_config.json); put the template that the model shall be trained with there"
    )


def _eos_ids(folder: Path, tokenizer: Tokenizer, eos_token: str | None) -> tuple[int, ...]:
    for file in ("generation_config.json", "config.json"):
        found = read_json(folder / file).get("eos_token_id")
        if found is not None:
            return tuple(found) if isinstance(found, list) else (int(found),)
    eos = tokenizer.token_to_id(eos_token) if eos_token else None
    if eos is None:
        raise InputError(
            f"{folder} names no end token: set `eos_token_id` in its generation_config.json"
        )
    return (eos,)


def _token_text(token: Any) -> str:
    return token["content"] if isinstance(token, dict) else str(token)
