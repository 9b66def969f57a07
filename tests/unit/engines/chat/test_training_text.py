"""Conversations of templates that say themselves what the assistant writes."""

from __future__ import annotations

import pytest

from engines.chat.pieces import Pieces
from engines.chat.template import END, START, ChatTemplate
from engines.chat.training_text import cut
from engines.types import Message
from infra.errors import InputError

pytestmark = pytest.mark.unit

TEMPLATE = """\
{%- for m in messages %}
{%- if m.role == 'assistant' %}<|assistant|>
{%- generation %}({{ m.reasoning_content }}){{ m.content }}<|end|>{% endgeneration %}
{%- else %}<|{{ m.role }}|>{{ m.content }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}"""


@pytest.fixture
def pieces() -> Pieces:
    return Pieces(ChatTemplate(TEMPLATE, "chat_template.jinja", {}))


def test_turns_are_what_the_template_marks(pieces: Pieces) -> None:
    talk = [
        Message("user", "one"),
        Message("assistant", "1", reasoning="a"),
        Message("user", "two"),
        Message("assistant", "2", reasoning="b"),
    ]
    found = cut(pieces, talk, (), False)
    assert found.prompt == "<|user|>one<|assistant|>"
    assert found.exchanges == [("(a)1<|end|>", "<|user|>two<|assistant|>"), ("(b)2<|end|>", "")]


@pytest.mark.parametrize("mark", [START, END])
@pytest.mark.parametrize(
    "message",
    [
        Message("user", "o{}ne"),
        Message("assistant", "1{}", reasoning="a"),
        Message("assistant", "1", reasoning="a{}"),
    ],
)
def test_a_text_that_holds_a_mark_is_refused(pieces: Pieces, message: Message, mark: str) -> None:
    held = Message(
        message.role,
        message.content.format(mark),
        message.reasoning and message.reasoning.format(mark),
    )
    talk = [Message("user", "x"), held]
    if held.role == "user":
        talk.append(Message("assistant", "1", reasoning="a"))
    with pytest.raises(InputError, match=r"mark[s]? "):
        cut(pieces, talk, (), False)
