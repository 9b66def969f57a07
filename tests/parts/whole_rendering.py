"""Conversations of many kinds, tokenizers of each kind, and what transformers makes of them."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

from engines.types import Message, Tool, ToolCall

TokenizerKind: TypeAlias = Literal["bytes", "prepend", "first", "always", "words"]
ENDS = (
    *(
        "<|im_end|>",
        "<|eot_id|>",
        "<end_of_turn>",
        "<turn|>",
        "<|END_OF_TURN_TOKEN|>",
        "<|return|>",
    ),
    *("<|end|>", "<\uff5cend▁of▁sentence\uff5c>", "</s>", "<end_of_utterance>", "<|endoftext|>"),
)
_SPECIAL = re.compile(
    r"<\|[^|<>{}'\"\s]+\|?>|<[a-z_]+\|>|<\uff5c[^\uff5c]+\uff5c>|\[/?[A-Za-z_]+\]|</?s>|<sop>"
    r"|<(?:start|end)_of_[a-z]+>"
)
_TAG = re.compile(r"</?(?:think|tool_call|tool_response|arg_key|arg_value)>")
_TEXTS = [
    "Hi", "Yo", "7", "What is 12 + 30?", "Two words.\nAnd another line.", "über 中文 \U0001f600 ∑",
    "def f(x):\n    return x  # two\n\nprint(f(1))", "| a | b |\n|---|---|", " leading space",
    "trailing space ", "\n\nlines around\n\n", "<b>bold</b> & \"quoted\" 'text'", "{{ x }} {% y %}",
    "what does <think></think> do?", "a\tb\r\nc", "▁ under ▁score", "ends with a colon:",
]  # fmt: skip
LOOK = Tool("look", "Looks.", {"at": "string", "n": "integer"}, ("at",))
_PROPERTIES = {"at": {"type": "string"}, "n": {"type": "integer"}}
_SCHEMA = {"type": "object", "properties": _PROPERTIES, "required": ["at"]}
_LOOK_AS_JSON = {
    "type": "function",
    "function": {"name": "look", "description": "Looks.", "parameters": _SCHEMA},
}
"""the only tool of a talk, written by hand"""


@dataclass(frozen=True, slots=True)
class Talk:
    name: str
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    thinking: bool = False


def talks(seed: int = 0) -> Iterator[Talk]:
    """Twenty conversations; their texts follow from the seed."""
    made = random.Random(seed)
    plain = [text for text in _TEXTS if "think" not in text and text == text.strip()]

    def user(texts: Sequence[str] = _TEXTS) -> Message:
        return Message("user", made.choice(texts))

    def said(texts: Sequence[str] = plain, thought: str | None = None) -> Message:
        return Message("assistant", made.choice(texts), thought)

    def call(thought: str | None = None, content: str = "", count: int = 1) -> Message:
        calls = tuple(ToolCall("look", {"at": made.choice(plain), "n": n}) for n in range(count))
        return Message("assistant", content, thought, calls)

    def found() -> Message:
        return Message("tool", made.choice(_TEXTS))

    system = Message("system", "Be brief.\nAnd kind.")
    for number in range(4):
        yield Talk(f"one turn {number}", (user(), said()))
    yield Talk("one turn, system", (system, user(), said()))
    for number in range(3):
        yield Talk(f"three turns {number}", (user(), said(), user(), said(), user(), said()))
    yield Talk("two turns, system", (system, user(), said(), user(), said()))
    yield Talk("white space around turns", (user(), said([" leading"]), user(), said(["one "])))
    yield Talk("line feed before a turn", (user(), said(["\nfeed"]), user(), said(["\nfeed"])))
    yield Talk("call", (user(), call(), found(), said()), (LOOK,))
    yield Talk("text and call", (user(), call(content="I look."), found(), said()), (LOOK,))
    yield Talk("two calls", (user(), call(), found(), call(), found(), said()), (LOOK,))
    yield Talk("calls at once", (system, user(), call(count=2), found(), found(), said()), (LOOK,))
    yield Talk("call, later turn", (user(), call(), found(), said(), user(), said()), (LOOK,))
    yield Talk("thought", (user(), said(thought="So it is.")), (), True)
    yield Talk("last thought", (user(), said(), user(), said(thought="Hm.\nYes.")), (), True)
    yield Talk("thoughts", (user(), said(thought="A"), user(), said(thought="B")), (), True)
    thoughtful = (user(), call("I must look."), found(), said(thought="Seen."))
    yield Talk("thoughts and call", thoughtful, (LOOK,), True)


def write_folder(folder: Path, template: str, kind: TokenizerKind) -> Path:
    """A folder with the chat parts of a model whose template this is."""
    from tokenizers import AddedToken, Tokenizer

    folder.mkdir(parents=True, exist_ok=True)
    special = list(dict.fromkeys(_SPECIAL.findall(template)))
    end = next((text for text in ENDS if text in template), "</s>")
    begin = next((text for text in ("<|begin_of_text|>", "<bos>") if text in template), "<s>")
    tokenizer = Tokenizer.from_str(_trained(kind))
    strip = "<|end|>" in template and "<|assistant|>" in template and kind != "bytes"  # as Phi-3's
    tokenizer.add_special_tokens(
        [
            AddedToken(text, special=True, normalized=False, rstrip=strip and text != begin)
            for text in dict.fromkeys([begin, end, "<unk>", *special])
        ]
    )
    tags = list(dict.fromkeys(_TAG.findall(template)))
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in tags])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "bos_token": begin, "eos_token": end, "unk_token": "<unk>", "chat_template": template,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@cache
def _trained(kind: TokenizerKind) -> str:
    return _tokenizer(kind).to_str()


def _tokenizer(kind: TokenizerKind) -> Any:
    """Trained on the texts, so that tokens join characters as real ones do."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    texts = [*_TEXTS, *(f"user\n{text}\nassistant: {text} [/INST]" for text in _TEXTS)] * 20
    if kind == "words":
        tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
        tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
        trainer = trainers.WordPieceTrainer(
            vocab_size=600, special_tokens=["<unk>"], show_progress=False
        )
        tokenizer.train_from_iterator(texts, trainer)
        return tokenizer
    if kind == "bytes":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        trainer = trainers.BpeTrainer(
            vocab_size=600, initial_alphabet=alphabet, show_progress=False
        )
        tokenizer.train_from_iterator(texts, trainer)
        return tokenizer
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    space = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    if kind == "prepend":
        tokenizer.normalizer = normalizers.Sequence(space)
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
            replacement="▁", prepend_scheme=kind, split=kind == "always"
        )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )  # fmt: skip
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))],
        show_progress=False,
    )
    # Whole words, as in SentencePiece: no token goes on into the next word.
    words = [word for text in texts for word in re.findall(r"\s*\S+", text)]
    tokenizer.train_from_iterator(words, trainer)
    return tokenizer


def by_transformers(tokenizer: Any, talk: Talk, count: int | None = None) -> list[int] | None:
    """Ids of the conversation (or of its first messages, as a prompt); None where the template
    refuses it."""
    messages = talk.messages if count is None else talk.messages[:count]
    for empty, as_text in (("", False), ("", True), (None, False), (None, True)):
        raw = [_raw(message, empty, as_text) for message in messages]
        try:
            found = tokenizer.apply_chat_template(
                raw,
                tools=[_LOOK_AS_JSON] if talk.tools else None,
                add_generation_prompt=count is not None,
                return_dict=False,
                enable_thinking=talk.thinking,
            )
        except Exception:
            continue
        if not any(m.tool_calls for m in messages) or _has_calls(tokenizer.decode(found)):
            return found
    return None


def _has_calls(text: str) -> bool:
    return "look" in text and '\\"at\\"' not in text


def _raw(message: Message, empty: str | None, as_text: bool) -> dict[str, Any]:
    raw: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning is not None:
        raw["reasoning_content"] = raw["thinking"] = message.reasoning
    if message.tool_calls:
        raw["content"] = message.content or empty
        raw["tool_calls"] = [
            {
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": json.dumps(call.arguments, ensure_ascii=False)
                    if as_text
                    else call.arguments,
                },
            }
            for call in message.tool_calls
        ]
    return raw
