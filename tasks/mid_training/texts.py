"""Documents and conversations as tokens that are trained on, all of them or those of some roles."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import accumulate
from typing import Any

from curricula.rows.conversation import Conversation, Document
from curricula.rows.fields import Fields
from curricula.rows.texts import is_blank, kind_of, shallow, text_of
from engines.batching import TokenSequence
from engines.chat import Chat
from engines.chat.training_text import TrainingText
from engines.types import Message
from infra.data_files.tally import BadRow, Reason
from infra.errors import InputError
from tasks.message_files.render_rows import Renderer

_MARK = "\ufdd0"
"""no character of any language: stands at both ends of a text while its place is looked for"""


@shallow
def read_document(row: Mapping[str, Any], column: str) -> Document:
    """Raises BadRow for a row without a text there."""
    unread: set[str] = set()
    fields = Fields(row, unread)
    value: Any = fields.column(column)
    if not isinstance(value, str) or is_blank(value):
        held = "is empty" if not value or isinstance(value, str) else f"holds {kind_of(value)}"
        raise BadRow(Reason.COLUMNS, f"{column}: {held}, and should be a document's text")
    fields.close()
    said = text_of(value, column)
    return Document((), layout=f"documents ({column})", unread=frozenset(unread), text=said)


class TextRenderer(Renderer):
    """Renders rows of any length; what is too long for a sequence is cut later."""

    def __init__(self, chat: Chat, roles: Collection[str] | None) -> None:
        """`roles`: whose messages the loss is taken on; None: on every token."""
        super().__init__(chat, sys.maxsize)
        self._others = None if roles is None else frozenset(roles) - {"assistant"}

    def lacks_thought(self, conversation: Conversation) -> bool:
        """What comes is to be read: nobody is asked."""
        return False

    def _text(self, conversation: Conversation) -> TrainingText:
        if isinstance(conversation, Document):
            return self.chat.document_text(conversation.text)
        return super()._text(conversation)

    def _sequence_or_fault(
        self, conversation: Conversation, tokens: list[int], mask: list[int]
    ) -> TokenSequence | BadRow:
        if isinstance(conversation, Document):
            return TokenSequence(tokens, mask)
        made = super()._sequence_or_fault(conversation, tokens, mask)
        if isinstance(made, BadRow) or self._others == frozenset():
            return made
        if self._others is None:  # all but what its author marked
            marked = zip(mask, made.loss_mask, strict=True)
            return replace(made, loss_mask=[int(not was or is_now) for was, is_now in marked])
        whole = self._text(conversation).whole
        try:
            spans = self._spans(conversation, whole, self._others)
        except BadRow as error:
            return error
        return replace(made, loss_mask=self._with_spans(made, whole, spans))

    def _spans(
        self, conversation: Conversation, whole: str, roles: Collection[str]
    ) -> list[tuple[int, int]]:
        """Where the texts of these roles' messages stand in the rendering, found by rendering them
        between marks. Raises BadRow for a template that writes them in another way then."""
        told = [m for m in conversation.messages if m.role in roles and m.content.strip()]
        messages = tuple(_marked(m) if m in told else m for m in conversation.messages)
        try:
            parts = self._text(replace(conversation, messages=messages)).whole.split(_MARK)
        except (BadRow, InputError):
            parts = []
        if "".join(parts) != whole or len(parts) != 2 * len(told) + 1:
            raise BadRow(
                Reason.TEMPLATE,
                "the chat template does not write a message's text in one place, as it is, so that"
                f" the loss cannot be taken on {', '.join(sorted(roles))}; leave `roles` out, or"
                " these roles",
            )
        ends = [*accumulate(map(len, parts))]
        return list(zip(ends[:-1:2], ends[1::2], strict=True))

    def _with_spans(
        self, made: TokenSequence, whole: str, spans: list[tuple[int, int]]
    ) -> list[int]:
        """The mask with these characters, too, and the token that ends their turn."""
        if not spans:
            return made.loss_mask
        starts = [start for start, _ in spans] + [len(whole)]
        exchanges = [
            (whole[start:end], whole[end:following])
            for (start, end), following in zip(spans, starts[1:], strict=True)
        ]
        ids, mask = self.chat.masked_ids([TrainingText(whole[: starts[0]], exchanges)])[0]
        others = [bool(m) and i == t for i, m, t in zip(ids, mask, made.tokens, strict=False)]
        others += [False] * (len(made.tokens) - len(others))
        return [int(m or other) for m, other in zip(made.loss_mask, others, strict=False)]


def _marked(message: Message) -> Message:
    """Its text between marks; white space around it stays outside, as templates may drop it."""
    said = message.content.strip()
    before, _, after = message.content.partition(said)
    return replace(message, content=f"{before}{_MARK}{said}{_MARK}{after}")
