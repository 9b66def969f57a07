"""A conversation as tokens and loss mask, by a model's own chat template."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from curricula.rows.conversation import Conversation
from engines.batching import TokenSequence
from engines.chat import Chat
from engines.chat.chat import too_long
from engines.chat.mode import Thoughts
from engines.chat.training_text import TrainingText
from engines.types import Message, Problem
from infra.data_files.rows import BadRow, Reason
from infra.errors import InputError

_THINK, _END_THINK = "<think>", "</think>"
_OTHER_THOUGHT = re.compile(
    r"[<\[◁](?!/)(?!think>)\|?(?:(?:begin|start)_(?:of_)?|seed:|ant|inner_)?"
    r"(?:think(?:ing)?|thoughts?|reason(?:ing)?|scratch_?pad|reflection|analysis|cot|monologue)"
    r"\|?[>\]▷]",
    re.IGNORECASE,
)
"""a tag that opens a thought in other models' answers"""


class Renderer:
    """Renders rows for one model."""

    def __init__(self, chat: Chat, max_tokens: int) -> None:
        """`max_tokens`: the model's context."""
        self.chat = chat
        self.max_tokens = max_tokens

    @classmethod
    def of_model(cls, folder: Path, template: str = "") -> Renderer:
        """`template`: a text in place of the folder's own. Raises InputError that names what the
        folder lacks."""
        from engines.families.common.model_config import read_config
        from engines.families.common.registry import model_shape

        return cls(Chat.load(folder, template), model_shape(read_config(folder)).max_positions)

    def render(self, conversation: Conversation) -> TokenSequence:
        """Tokens; the mask is 1 where the assistant wrote and is to be learned. Raises BadRow.

        A thought comes where a message has one: as `reasoning`, or between think tags at the start
        of the text, if the template has a place for it.
        """
        (made,) = self.render_all([conversation])
        if isinstance(made, BadRow):
            raise made
        return made

    def prompt_ids(self, problem: Problem) -> list[int]:
        """Return a prompt's tokens. Raises BadRow where the template refuses it, and where it
        leaves no room for an answer."""
        try:
            tokens = self.chat.prompt_ids(problem)
        except InputError as error:
            raise BadRow(Reason.TEMPLATE, str(error)) from None
        if fault := too_long(len(tokens), self.max_tokens - 1, self.max_tokens):
            raise BadRow(Reason.TOO_LONG, fault)
        return tokens

    def lacks_thought(self, conversation: Conversation) -> bool:
        """Return whether it shows no thought to a model whose template opens one in every turn:
        then its answers are trained after another header than the one that the model is asked with.
        """
        if self.chat.mode.thoughts is not Thoughts.ALWAYS:
            return False
        said = (m for m in conversation.messages if m.role == "assistant")
        return not any(m.reasoning or m.content.lstrip().startswith(_THINK) for m in said)

    def without_thoughts(self, conversation: Conversation) -> Conversation | None:
        """The conversation for an answer with thinking off; None where nobody thinks in it, or it
        is bad."""
        try:
            messages = tuple(map(with_thought, conversation.messages))
        except BadRow:
            return None
        if not any(message.reasoning for message in messages):
            return None
        bare = tuple(replace(message, reasoning=None) for message in messages)
        return replace(conversation, messages=bare)

    def render_all(
        self, conversations: Sequence[Conversation | BadRow]
    ) -> list[TokenSequence | BadRow]:
        """Renders several at once, which is faster; those that are bad stay in their places."""
        texts = [self._text_or_fault(each) for each in conversations]
        good = [text for text in texts if isinstance(text, TrainingText)]
        encoded = iter(self.chat.masked_ids(good))
        made: list[TokenSequence | BadRow] = []
        for conversation, text in zip(conversations, texts, strict=True):
            if isinstance(text, BadRow):
                made.append(text)
            elif isinstance(conversation, Conversation):  # or it would have no text
                made.append(self._sequence_or_fault(conversation, *next(encoded)))
        return made

    def _text_or_fault(self, conversation: Conversation | BadRow) -> TrainingText | BadRow:
        if isinstance(conversation, BadRow):
            return conversation
        try:
            return self._text(conversation)
        except BadRow as error:
            return error
        except InputError as error:
            return BadRow(Reason.TEMPLATE, str(error))
        except RecursionError:
            return BadRow(Reason.TEMPLATE, "is nested too deeply for the chat template")

    def _text(self, conversation: Conversation) -> TrainingText:
        messages = conversation.messages
        if self.chat.writes_thoughts:
            messages = tuple(map(with_thought, messages))
        if self.chat.mode.thoughts in (Thoughts.SWITCHED, Thoughts.ALWAYS, Thoughts.CHANNEL):
            _refuse_other_tags(messages)
        thinking = any(message.reasoning for message in messages)
        tools = conversation.tools
        if tools and not self.chat.lists_tools(messages, tools):
            raise BadRow(
                Reason.TOOLS,
                f"has the tool {tools[0].name}, but the chat template {self.chat.template_file}"
                " lists no tools; name each with its parameters in a system message",
            )
        return self.chat.training_text(messages, tools, thinking=thinking)

    def _sequence_or_fault(
        self, conversation: Conversation, tokens: list[int], mask: list[int]
    ) -> TokenSequence | BadRow:
        if fault := too_long(len(tokens), self.max_tokens, self.max_tokens):
            return BadRow(Reason.TOO_LONG, fault)
        if conversation.untrained:
            mask = _without(mask, conversation.messages, conversation.untrained)
        if conversation.weight == 0 or not any(mask):
            return BadRow(Reason.NOTHING_TRAINED, "nothing of it is trained on: its weights are 0")
        return TokenSequence(tokens, mask, conversation.weight)


class WithoutThoughts(Renderer):
    """Renders rows as a reward model is asked: it sees no thoughts."""

    def render_all(
        self, conversations: Sequence[Conversation | BadRow]
    ) -> list[TokenSequence | BadRow]:
        return super().render_all([*map(self._bare, conversations)])

    def _bare(self, conversation: Conversation | BadRow) -> Conversation | BadRow:
        if isinstance(conversation, BadRow):
            return conversation
        bare = self.without_thoughts(conversation)
        if bare is None:
            return conversation
        if not (bare.messages[-1].content.strip() or bare.messages[-1].tool_calls):
            return BadRow(Reason.MESSAGES, "its last turn is a thought alone, without an answer")
        return bare


def _refuse_other_tags(messages: Sequence[Message]) -> None:
    """Raises BadRow for a thought between other tags than the template's: the model would learn it
    as its answer, behind a thought that is empty."""
    for at, message in enumerate(messages):
        said = message.content.lstrip()
        if message.role == "assistant" and (found := _OTHER_THOUGHT.match(said)):
            raise BadRow(
                Reason.MESSAGES,
                f"messages[{at}]: begins with {found[0]}, but the template writes thoughts between"
                f" {_THINK} and {_END_THINK}; write these, or the thought into `reasoning_content`",
            )


def with_thought(message: Message) -> Message:
    """Think tags in the text, taken out of it."""
    text = message.content.lstrip()
    if message.role != "assistant" or message.reasoning or not text.startswith(_THINK):
        return message
    thought, closed, said = text.removeprefix(_THINK).partition(_END_THINK)
    if not closed:
        raise BadRow(Reason.MESSAGES, f"{_THINK} is not closed")
    return replace(message, reasoning=thought.strip() or None, content=said.lstrip("\n"))


def _without(
    mask: list[int], messages: tuple[Message, ...], untrained: frozenset[int]
) -> list[int]:
    """The mask without some of the assistant's messages: each is one run of ones in it."""
    places = [at for at, message in enumerate(messages) if message.role == "assistant"]
    kept: list[int] = []
    run = -1
    for at, is_said in enumerate(mask):
        run += bool(is_said) and (at == 0 or not mask[at - 1])
        kept.append(int(bool(is_said) and places[run] not in untrained))
    return kept
