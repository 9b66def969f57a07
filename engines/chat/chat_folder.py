"""What a chat needs from a model folder: tokenizer, template, special tokens, stop tokens."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import orjson
from tokenizers import AddedToken, Tokenizer

from engines.chat.template import ChatTemplate
from infra.data_files.heads import HEAD_BYTES, other_text
from infra.errors import InputError

_SPECIAL = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))


_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "config.json",
)


MOST_BYTES = {
    "tokenizer.json": 128 << 20,
    "model.safetensors.index.json": 128 << 20,
    **dict.fromkeys(_FILES[1:], 16 << 20),
}
"""of the files of a model folder that are read whole; known tokenizers have up to 40 MB"""
_MOST_GROWTH = 100
"""characters that a tokenizer may make of one by replacing; known ones make 3"""


GIVEN = "base.template"
"""what messages call a template that is not the folder's own"""


@dataclass(frozen=True, slots=True)
class ChatFolder:
    tokenizer: Tokenizer
    template: ChatTemplate
    eos_ids: tuple[int, ...]
    """ids that end generation, as the folder declares them; the first ends a conversation"""
    notes: tuple[str, ...] = ()
    """what is good to know of it, each beginning with the file"""


def load_chat_folder(folder: Path, template: str = "") -> ChatFolder:
    """Read the chat parts of an HF folder, with the text `template` in place of its own if there is
    one. Raises InputError that begins with the file's name."""
    tokenizer = _tokenizer(folder)
    settings = read_json(folder / "tokenizer_config.json")
    special = {k: _token_text(k, settings[k]) for k in _SPECIAL if settings.get(k) is not None}
    _add_special(tokenizer, special.values())
    found = _Template(template, GIVEN) if template else _template_text(folder, settings)
    return ChatFolder(
        tokenizer=tokenizer,
        template=ChatTemplate(found.text, found.file, special),
        eos_ids=_eos_ids(folder, tokenizer, special.get("eos_token")),
        notes=(_of_others(found),) if found.others else (),
    )


class _Template(NamedTuple):
    text: str
    file: str
    others: tuple[str, ...] = ()
    """names of templates that stand beside it"""


def _of_others(found: _Template) -> str:
    names = " and ".join(f"`{name}`" for name in found.others)
    return (
        f"{found.file}: has the chat templates `default` and {names}; `default` is used, with tools"
        " as well: to take another, write it into a file and name that in `base.template`"
    )


def chat_files(folder: Path) -> dict[str, bytes]:
    """Contents, by name, of the files that `load_chat_folder` reads: for a host without it."""
    return {name: _bytes(folder / name) for name in _FILES if (folder / name).is_file()}


def write_stops(folder: Path, stops: Sequence[int]) -> None:
    """List the ids at which generation ends in the files of a folder that other programs look into;
    those that stand there stay first. Raises InputError."""
    for name in ("generation_config.json", "config.json"):
        settings = read_json(folder / name)
        found = settings.get("eos_token_id")
        listed = [] if found is None else found if isinstance(found, list) else [found]
        if settings and not set(stops) <= set(listed):
            settings["eos_token_id"] = [*listed, *(s for s in stops if s not in listed)]
            (folder / name).write_text(json.dumps(settings, indent=2) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON object, or an empty one if the file does not exist."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(_text(path))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path.name}: is not valid JSON: {error}; copy the file again") from error
    if not isinstance(content, dict):
        raise InputError(f"{path.name}: must hold a JSON object; copy the file again")
    return content


def check_sizes(sizes: Mapping[str, int], where: str = "") -> None:
    """Raises InputError for the first of these files, by name, that is larger than any such is:
    it is read whole, and a tokenizer takes many times its file."""
    for name, size in sizes.items():
        most = MOST_BYTES.get(name, 0)
        if most and size > most:
            raise InputError(
                f"{where}{name}: has {size} bytes, and at most {most} are read; copy it again from"
                " a source that you trust"
            )


def _bytes(path: Path) -> bytes:
    try:
        check_sizes({path.name: path.stat().st_size})
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path.name}: cannot be read: {error.strerror}") from error


def _text(path: Path) -> str:
    content = _bytes(path)
    if said := other_text(content[:HEAD_BYTES]):
        raise InputError(f"{path.name}: {said}")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{path.name}: is not UTF-8 text: {error}; copy it again") from error


def _tokenizer(folder: Path) -> Tokenizer:
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise InputError(
            "tokenizer.json: is missing; a model folder needs a fast tokenizer: make it with"
            " AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) of transformers"
        )
    text = _text(path)
    _check_growth(text)
    try:
        tokenizer = Tokenizer.from_str(text)
    except BaseException as error:  # the library raises a bare Exception, or ends in a Rust panic
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        why = error if isinstance(error, Exception) else "one of its steps is broken"
        raise InputError(
            f"tokenizer.json: contains no valid tokenizer: {why}; copy it again"
        ) from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _check_growth(text: str) -> None:
    """Raises InputError for steps that make so much of each character that a text would fill the
    memory; nothing can end them once they run."""
    try:
        steps = orjson.loads(text)
    except orjson.JSONDecodeError:  # the library says more
        return
    for part in ("normalizer", "pre_tokenizer", "decoder") if isinstance(steps, dict) else ():
        if _growth(steps.get(part)) > _MOST_GROWTH:
            raise InputError(
                f"tokenizer.json: its {part} makes more than {_MOST_GROWTH} characters of one; copy"
                " it again from a source that you trust"
            )


def _growth(step: Any) -> int:
    """Return how many characters at most replacements make of one."""
    if not isinstance(step, dict):
        return 1
    below = [each for held in step.values() if isinstance(held, list) for each in held]
    put = max(len(str(step.get(name) or "")) for name in ("content", "prepend"))
    return prod(map(_growth, below)) * max(put, 1)


def _add_special(tokenizer: Tokenizer, texts: Iterable[str]) -> None:
    """Make each special token of tokenizer_config.json one that is found in texts, as transformers
    does: tokenizer.json may have it as an ordinary token."""
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    tokenizer.add_special_tokens(
        [
            AddedToken(text, special=True, normalized=False)
            for text in dict.fromkeys(texts)
            if text not in known and tokenizer.token_to_id(text) is not None
        ]
    )


def _template_text(folder: Path, settings: Mapping[str, Any]) -> _Template:
    """The template and the file it was found in, in the order that transformers looks."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return _Template(_text(path), path.name)
    for file, found in (
        ("chat_template.json", read_json(folder / "chat_template.json").get("chat_template")),
        ("tokenizer_config.json", settings.get("chat_template")),
    ):
        others: list[str] = []
        if isinstance(found, list):
            named = {str(t.get("name")): t.get("template") for t in found if isinstance(t, dict)}
            found, others = named.pop("default", None), [*named]
        if isinstance(found, str):
            return _Template(found, file, tuple(others))
    raise InputError(
        "chat_template.jinja: is missing, and tokenizer_config.json has no `chat_template`; put"
        " there the template that the model should be trained with"
    )


def _eos_ids(folder: Path, tokenizer: Tokenizer, eos_token: str | None) -> tuple[int, ...]:
    for file in ("generation_config.json", "config.json"):
        found = read_json(folder / file).get("eos_token_id")
        if found is not None:
            ids = found if isinstance(found, list) else [found]
            for token in ids or [found]:
                _check_id(file, token, tokenizer)
            return tuple(ids)
    eos = tokenizer.token_to_id(eos_token) if eos_token else None
    if eos is None:
        raise InputError(
            "generation_config.json: names no end token; set `eos_token_id` in it to the id of the"
            " token that ends an answer"
        )
    return (eos,)


def _check_id(file: str, token: Any, tokenizer: Tokenizer) -> None:
    if isinstance(token, bool) or not isinstance(token, int) or token < 0:
        raise InputError(
            f"{file}: eos_token_id must be a token id or a list of them, got {token!r}"
        )
    if tokenizer.id_to_token(token) is None:
        raise InputError(
            f"{file}: eos_token_id {token} is not in tokenizer.json, which has"
            f" {tokenizer.get_vocab_size()}; correct the id, or copy the tokenizer that belongs to"
            " the model"
        )


def _token_text(key: str, token: Any) -> str:
    text = token.get("content") if isinstance(token, dict) else token
    if not isinstance(text, str):
        raise InputError(f"tokenizer_config.json: {key} must be a token's text, got {token!r}")
    return text
