"""Plain conversations are rendered as the template itself renders them; others are not touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from engines.chat import Chat
from engines.chat.plain_texts import PlainTexts
from engines.chat.training_text import TrainingText, cut
from engines.types import Message
from tests.parts.chat_parts import LLAMA, LLAMA_TOKENS, QWEN3, QWEN_TOKENS, chat_folder

pytestmark = pytest.mark.unit


def talk(*texts: str, system: str = "") -> list[Message]:
    said = [Message("user" if at % 2 == 0 else "assistant", t) for at, t in enumerate(texts)]
    return [Message("system", system), *said] if system else said


@pytest.mark.parametrize("family", ["qwen", "llama"])
def test_a_filled_rendering_is_the_templates_own(tmp_path: Path, family: str):
    given = {"qwen": (QWEN3, QWEN_TOKENS, "<|im_end|>"), "llama": (LLAMA, LLAMA_TOKENS, "<|eot|>")}
    chat = Chat.load(chat_folder(tmp_path, *given[family]))
    pieces = chat._pieces
    rendered: list[int] = []

    def slow(messages: list[Message]) -> TrainingText:
        rendered.append(len(messages))
        return cut(pieces, messages, (), False)

    plain = PlainTexts(slow)
    for messages in (
        talk("Hi", "Yo"),
        talk("12+30", "It is\n42."),
        talk("Zq1qZ", "{{ x }} \u4e2d"),
        talk("a", "b", "c", "d", system="Be brief."),
    ):
        assert plain.cut(messages) == cut(pieces, messages, (), False)
    assert len(rendered) == 2 * 5, "one rendering and four probes for each of two shapes"
    for text in (" a", "a\n", "<b>", "stop /no_think", ""):
        assert plain.cut(talk("Hi", text)) is None


def test_a_template_that_treats_plain_texts_differently_is_rendered_whole(tmp_path: Path):
    shouting = LLAMA.replace("message.content | trim", "message.content | upper")
    chat = Chat.load(chat_folder(tmp_path, shouting, LLAMA_TOKENS, "<|eot|>"))
    plain = PlainTexts(lambda m: cut(chat._pieces, m, (), False))
    assert plain.cut(talk("HI", "YO")) is None
