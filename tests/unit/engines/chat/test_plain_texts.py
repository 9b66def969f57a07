"""Plain conversations are rendered as the template itself renders them; others are not touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from engines.chat import Chat
from engines.chat.training_text import PlainTexts, TrainingText, cut
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

    plain = PlainTexts(slow, lambda: pieces.template.literals)
    assert plain._changed == ((), ()), "nothing but white space around a text matters"
    rendered.clear()
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
    plain = PlainTexts(
        lambda m: cut(chat._pieces, m, (), False), lambda: chat._pieces.template.literals
    )
    assert plain.cut(talk("HI", "YO")) is None


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("message.content | replace('\\t', '    ')", "if x:\n\ty()"),
        ("message.content | replace('###', '#')", "### Sum"),
        ("message.content.splitlines() | join('\\n')", "a\r\nb"),
        ("'[IMG]' if 'picture' in message.content else message.content", "a picture of it"),
        ("'/' ~ message.content if message.content.startswith('!') else message.content", "!go"),
        ("message.content[:20000]", "word " * 5000 + "end"),
        ("message.content | replace('&', '&amp;')", "a & b"),
    ],
)
def test_what_a_template_changes_of_a_question_is_never_filled_in(
    tmp_path: Path, rule: str, text: str
):
    """The filled rendering would be other tokens than those of the template, and of servers."""
    of_users = f"(message.content if message.role == 'assistant' else {rule})"
    odd = LLAMA.replace("message.content | trim", of_users)
    chat = Chat.load(chat_folder(tmp_path, odd, LLAMA_TOKENS, "<|eot|>"))
    for messages in (talk(text, "Yo"), talk("Hi", "Yo", text, "Yo"), talk("Hi", "Yo")):
        found = chat.training_text(messages, (), thinking=False)
        assert found.whole == chat._pieces.template.render(messages)
