"""A conversation as tokens and loss mask, by a model's own chat template."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from curricula.rows.conversation import Conversation
from engines.batching import TokenSequence
from engines.chat import Chat
from engines.types import Message, Problem
from infra.data_files.bad_row import BadRow, Reason
from infra.errors import InputError

_THINK, _END_THINK = "<think>", "</think>"


class Renderer:
    """Renders rows for one model."""

    def __init__(self, chat: Chat, max_tokens: int) -> None:
        """`max_tokens`: the model's context."""
        self.chat = chat
        self._max_tokens = max_tokens

    @classmethod
    def of_model(cls, folder: Path) -> Renderer:
        """Raises InputError that names what the folder lacks."""
        from engines.families.common.config import read_config
        from engines.families.common.registry import model_shape

        return cls(Chat.load(folder), model_shape(read_config(folder)).max_positions)

    def render(self, conversation: Conversation) -> TokenSequence:
        """Its tokens; the mask is 1 where the assistant wrote and is to be learned. Raises BadRow.

        A thought comes where a message has one: as `reasoning`, or between think tags at the start
        of the text, if the template can be told to think.
        """
        messages = conversation.messages
        self._check_tools(conversation)
        if self.chat.is_thinking_switchable:
            messages = tuple(map(_with_thought, messages))
        start = next(at for at, message in enumerate(messages) if message.role == "assistant")
        thinking = any(message.reasoning for message in messages)
        problem = Problem("", "", messages[:start], tools=conversation.tools, thinking=thinking)
        try:
            tokens, mask = self.chat.training_ids(problem, messages[start:])
        except InputError as error:
            raise BadRow(Reason.TEMPLATE, str(error)) from None
        if len(tokens) > self._max_tokens:
            raise BadRow(
                Reason.TOO_LONG,
                f"has {len(tokens)} tokens; the model's context holds {self._max_tokens}",
            )
        if conversation.untrained:
            mask = _without(mask, messages, conversation.untrained)
        if conversation.weight == 0 or not any(mask):
            raise BadRow(Reason.NOTHING_TRAINED, "nothing of it is trained on: its weights are 0")
        return TokenSequence(tokens, mask, conversation.weight)

    def _check_tools(self, conversation: Conversation) -> None:
        if self.chat.can_call_tools:
            return
        if conversation.tools or any(m.tool_calls for m in conversation.messages):
            raise BadRow(
                Reason.TOOLS,
                f"has tools, but the chat template {self.chat.template_file} writes no tool calls"
                " in the GLM or Hermes form",
            )


def _with_thought(message: Message) -> Message:
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
