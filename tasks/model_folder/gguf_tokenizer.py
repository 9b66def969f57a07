"""The tokenizer that a GGUF file holds, as the files of an HF folder.

Two kinds: `gpt2`, byte-level BPE with merges, whose `tokenizer.ggml.pre` names how a text is split
first; and `llama`, SentencePiece's BPE, whose merges follow from the scores of its pieces.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra.errors import InputError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_AT = "tokenizer.ggml."
_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 2, 3, 4, 5
"""GGUF's types of tokens"""
_SPECIAL = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
_SPACE = "\u2581"
_MOST_SPLITS = 1 << 30
"""characters that are looked at; a vocabulary of 256,000 pieces takes a hundredth"""
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_SYMBOLS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _SYMBOLS + _REST
_QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _SYMBOLS + _REST
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _REST
)
_SPLITS: Mapping[str, str] = {
    **dict.fromkeys(("gpt-2", "phi-2", "olmo", "mpt"), "gpt-2"),
    **dict.fromkeys(("smollm", "starcoder", "refact", "codeshell"), "digits, then gpt-2"),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "dbrx"), _LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), _QWEN2),
    "gpt-4o": _GPT4O,
}
"""by the name in the file"""
_WHOLE_WORDS = ("llama-bpe", "llama3", "llama-v3", "falcon3")
"""whose words that are tokens are never merged from parts"""


def write_tokenizer(fields: Mapping[str, Any], folder: Path, max_length: int) -> dict[str, Any]:
    """Fill in tokenizer.json, tokenizer_config.json and the chat template, if there is one; returns
    the ids of special tokens that config.json has, too. Raises InputError."""
    tokens: Sequence[str] = _wanted(fields, "tokens")
    model = _wanted(fields, "model")
    if model not in ("gpt2", "llama"):
        raise InputError(f"its tokenizer is of the kind {model!r}; gpt2 and llama are read")
    tokenizer = _byte_level(fields, tokens) if model == "gpt2" else _pieces(fields, tokens)
    ids = {name: fields.get(f"{_AT}{long}_token_id") for name, long in _SPECIAL.items()}
    ids = {name: int(number) for name, number in ids.items() if number is not None}
    if wrong := [name for name, number in ids.items() if not 0 <= number < len(tokens)]:
        raise InputError(f"its {wrong[0]} token {ids[wrong[0]]} is none of {len(tokens)} tokens")
    _add_bos(tokenizer, fields, tokens, ids)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_length,
        **{f"{name}_token": tokens[number] for name, number in ids.items()},
    }
    (folder / "tokenizer_config.json").write_text(_json(config))
    if template := fields.get("tokenizer.chat_template"):
        (folder / "chat_template.jinja").write_text(template)
    return _of_config(fields, ids)


def _of_config(fields: Mapping[str, Any], ids: Mapping[str, int]) -> dict[str, Any]:
    ends = [ids.get("eos"), *(fields.get(f"{_AT}{name}_token_id") for name in ("eot", "eom"))]
    listed = list(dict.fromkeys(int(end) for end in ends if end is not None))
    known = {f"{name}_token_id": ids[name] for name in ("bos", "pad") if name in ids}
    return known | ({"eos_token_id": listed if len(listed) > 1 else listed[0]} if listed else {})


def _byte_level(fields: Mapping[str, Any], tokens: Sequence[str]) -> Tokenizer:
    from tokenizers import Tokenizer, decoders, models, normalizers, processors

    split = fields.get(f"{_AT}pre", "missing")
    if split not in _SPLITS:
        raise InputError(
            f"its tokenizer splits texts in the way {split!r}; known are {', '.join(_SPLITS)}: give"
            " the HF folder of the model in place of the GGUF file"
        )
    merges = [tuple(merge.split(" ", 1)) for merge in fields.get(f"{_AT}merges", [])]
    vocabulary = _vocabulary(fields, tokens)
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=split in _WHOLE_WORDS))
    tokenizer.pre_tokenizer = _splitter(_SPLITS[split])
    if split == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.decoder = decoders.ByteLevel()
    _add_special(tokenizer, fields, tokens)
    return tokenizer


def _splitter(split: str) -> Any:
    from tokenizers import Regex, pre_tokenizers

    if split == "gpt-2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if split == "digits, then gpt-2":
        first: Any = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([first, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    first = pre_tokenizers.Split(Regex(split), "isolated")
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([first, as_bytes])


def _pieces(fields: Mapping[str, Any], tokens: Sequence[str]) -> Tokenizer:
    """SentencePiece's BPE: spaces are part of the pieces, unknown characters become bytes."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    vocabulary = _vocabulary(fields, tokens)
    scores = dict(zip(tokens, _wanted(fields, "scores"), strict=False))
    unknown = fields.get(f"{_AT}unknown_token_id")
    tokenizer = Tokenizer(
        models.BPE(
            vocabulary,
            list(_merges(vocabulary, scores)),
            unk_token=None if unknown is None else tokens[int(unknown)],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    begins_with_space = bool(fields.get(f"{_AT}add_space_prefix", True))
    prefix: list[Any] = [normalizers.Prepend(_SPACE)] if begins_with_space else []
    tokenizer.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", _SPACE)])
    strip: list[Any] = [decoders.Strip(" ", 1, 0)] if begins_with_space else []
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    tokenizer.decoder = decoders.Sequence(steps)
    _add_special(tokenizer, fields, tokens)
    return tokenizer


def _merges(
    vocabulary: Mapping[str, int], scores: Mapping[str, float]
) -> Iterator[tuple[str, str]]:
    """Every way to make a piece of two pieces, those of the best score first. Raises InputError."""
    if sum(len(piece) ** 2 for piece in vocabulary) > _MOST_SPLITS:
        raise InputError("its tokenizer has longer pieces than any model's")
    found = [
        (-scores[piece], vocabulary[piece[:at]], vocabulary[piece[at:]], piece, at)
        for piece in vocabulary
        for at in range(1, len(piece))
        if piece[:at] in vocabulary and piece[at:] in vocabulary
    ]
    yield from ((piece[:at], piece[at:]) for _, _, _, piece, at in sorted(found))


def _vocabulary(fields: Mapping[str, Any], tokens: Sequence[str]) -> dict[str, int]:
    """Ids by text, without what only fills up the embedding."""
    types = fields.get(f"{_AT}token_type") or [1] * len(tokens)
    return {
        text: number
        for number, (text, kind) in enumerate(zip(tokens, types, strict=True))
        if kind != _UNUSED
    }


def _add_special(tokenizer: Tokenizer, fields: Mapping[str, Any], tokens: Sequence[str]) -> None:
    from tokenizers import AddedToken

    for text, kind in zip(tokens, fields.get(f"{_AT}token_type") or [], strict=False):
        if kind in (_CONTROL, _UNKNOWN):
            tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False)])
        elif kind == _USER_DEFINED:
            tokenizer.add_tokens([AddedToken(text, special=False, normalized=False)])


def _add_bos(
    tokenizer: Tokenizer, fields: Mapping[str, Any], tokens: Sequence[str], ids: Mapping[str, int]
) -> None:
    from tokenizers import processors

    of_pieces = fields[f"{_AT}model"] == "llama"
    if "bos" in ids and fields.get(f"{_AT}add_bos_token", of_pieces):
        bos = tokens[ids["bos"]]
        form = {"single": f"{bos} $A", "pair": f"{bos} $A {bos} $B"}
        adds = processors.TemplateProcessing(**form, special_tokens=[(bos, ids["bos"])])
        tokenizer.post_processor = adds


def _wanted(fields: Mapping[str, Any], name: str) -> Any:
    found = fields.get(f"{_AT}{name}")
    if found is None:
        raise InputError(f"has no {_AT}{name}: a model without its tokenizer cannot be trained")
    return found


def _json(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=2) + "\n"
