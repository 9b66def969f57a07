"""Documents and conversations as tokens that are trained on, all of them or those of some roles,
packed into sequences of one length.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeAlias

from curricula.rows.conversation import Conversation, Document
from curricula.rows.fields import Fields
from curricula.rows.texts import is_blank, kind_of, shallow, text_of
from engines.batching import TokenSequence, best_fit
from engines.chat import Chat
from engines.chat.training_text import TrainingText
from engines.types import Message
from infra.data_files.rows import BadRow, Reason
from infra.errors import InputError
from tasks.message_files.render_rows import Renderer
from tasks.message_files.spec import MessageFiles
from tasks.message_files.stream import MixedStream

_WINDOW_TOKENS, _FEWEST, _MOST = 1 << 21, 16, 64
"""tokens of a window of documents, and how many sequences these are at least and at most"""
_Piece: TypeAlias = tuple[int, TokenSequence]
"""a document or a piece of one, with the number of its source"""
_MARK = "\ufdd0"
"""no character of any language: stands at both ends of a text while its place is looked for"""


class PackedStream(MixedStream):
    """Sequences of whole documents, packed window by window: the fullest sequences of a window in a
    shuffled order; the documents of its emptiest go on into the next."""

    def __init__(
        self,
        sources: Sequence[MessageFiles],
        renderer: Renderer,
        seed: int,
        scratch: Path,
        length: int,
    ) -> None:
        """Raises what MixedStream raises."""
        super().__init__(sources, renderer, seed, scratch)
        self._length, self._seed = length, seed
        self._at_window = max(_FEWEST, min(_MOST, _WINDOW_TOKENS // length)) * length
        self._window: list[list[_Piece]] = []
        self._used = 0
        """sequences of the window that were taken"""
        self._left: list[_Piece] = []
        self._number = 0
        self.cut = self.pieces = self.unlearned = 0
        """documents that were longer than a sequence; what they were cut into; and pieces on none
        of whose tokens the loss is taken, which are left out"""
        self._left_out = [0] * len(sources)
        """tokens of these, by source"""
        self.sequences = 0
        """that were taken"""
        self.tokens = [0] * len(sources)
        """of these, by source"""
        self._before: dict[str, Any] = {}
        """where the window began"""

    def take_packed(self) -> list[TokenSequence]:
        """The documents of the next sequence. Raises what the sources' streams raise."""
        if self._used == len(self._window):
            self._pack()
        packed = self._window[self._used]
        self._used += 1
        self.sequences += 1
        for source, piece in packed:
            self.tokens[source] += len(piece.tokens)
        return [piece for _, piece in packed]

    @property
    def efficiency(self) -> float:
        """Share of the taken sequences' places that hold tokens."""
        return sum(self.tokens) / max(self.sequences * self._length, 1)

    def packed_share(self, source: int) -> float:
        """Return the share of a source's tokens that are packed, so far; the others are of pieces
        that are left out."""
        packed, left_out = self._taken[source], self._left_out[source]
        return packed / max(packed + left_out, 1)

    @property
    def position(self) -> dict[str, Any]:
        """Return where it stands, as plain JSON types."""
        taken = {"used": self._used, "sequences": self.sequences, "tokens": list(self.tokens)}
        return {"window": self._before, **taken}

    def continue_from(self, position: Mapping[str, Any]) -> None:
        """Stand where another stream of the same files, length and seed stood."""
        began = position["window"]
        self._number, self.cut, self.pieces = began["number"], began["cut"], began["pieces"]
        self.unlearned, self._left_out = began["unlearned"], list(began["left_out"])
        self._left = [(source, TokenSequence(*piece)) for source, *piece in began["left"]]
        super().continue_from(began["texts"])
        self._pack()
        self._used = position["used"]
        self.sequences, self.tokens = position["sequences"], list(position["tokens"])

    def _pack(self) -> None:
        """Open the next window."""
        self._before = {
            "number": self._number, "cut": self.cut, "pieces": self.pieces,
            "unlearned": self.unlearned, "left_out": list(self._left_out),
            "left": [[source, p.tokens, p.loss_mask, p.weight] for source, p in self._left],
            "texts": super().position,
        }  # fmt: skip
        pieces = [*self._left]
        room = self._at_window - sum(len(piece.tokens) for _, piece in pieces)
        while room > 0:
            source, document = self.take_by_tokens()
            found = list(cut(document, self._length))
            # Nothing predicts a first token, so one that is marked there alone trains nothing.
            learned = [piece for piece in found if any(piece.loss_mask[1:])]
            size = sum(len(piece.tokens) for piece in learned)
            self._left_out[source] += sum(len(piece.tokens) for piece in found) - size
            self.cut += len(found) > 1
            self.pieces += len(found) if len(found) > 1 else 0
            self.unlearned += len(found) - len(learned)
            self._taken[source] += size - len(document.tokens)
            pieces += [(source, piece) for piece in learned]
            room -= size
        lengths = [len(piece.tokens) for _, piece in pieces]
        bins = best_fit(lengths, self._length)
        bins.sort(key=lambda places: sum(lengths[at] for at in places))
        self._left = [pieces[at] for at in sorted(bins.pop(0))]
        random.Random(f"{self._seed}/packed/{self._number}").shuffle(bins)
        self._window = [[pieces[at] for at in sorted(places)] for places in bins]
        self._used = 0
        self._number += 1


def cut(document: TokenSequence, length: int) -> Iterator[TokenSequence]:
    """The document, or its pieces if it is longer: each begins with the last token of the one
    before, so that every token but the first is predicted once."""
    tokens, mask, weight = document.tokens, document.loss_mask, document.weight
    for at in range(0, max(len(tokens) - 1, 1), length - 1):
        yield TokenSequence(tokens[at : at + length], mask[at : at + length], weight)


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
        try:
            if self._others is not None:
                learned = self._mask_of(conversation, made.tokens, self._others, is_marked=False)
                mask = [int(a or b) for a, b in zip(made.loss_mask, learned, strict=True)]
            else:  # all but what its author marked
                only_read = self._mask_of(conversation, made.tokens, None, is_marked=True)
                each = zip(mask, made.loss_mask, only_read, strict=True)
                mask = [int((not said or told) and not read) for said, told, read in each]
        except BadRow as error:
            return error
        return replace(made, loss_mask=mask)

    def _mask_of(
        self,
        conversation: Conversation,
        tokens: list[int],
        roles: Collection[str] | None,
        *,
        is_marked: bool,
    ) -> list[int]:
        """Ones at what others than the assistant say: those of these roles (None: of all), marked
        as only read or not. Raises BadRow."""
        told = [
            at
            for at, message in enumerate(conversation.messages)
            if message.role != "assistant"
            and (roles is None or message.role in roles)
            and (at in conversation.untrained) == is_marked
            and message.content.strip()
        ]
        if not told:
            return [0] * len(tokens)
        whole = self._text(conversation).whole
        return self._with_spans(tokens, whole, self._spans(conversation, whole, told))

    def _spans(
        self, conversation: Conversation, whole: str, told: Collection[int]
    ) -> list[tuple[int, int]]:
        """Where the texts of these messages stand in the rendering, found by rendering them
        between marks. Raises BadRow for a template that writes them in another way then."""
        messages = tuple(
            _marked(m) if at in told else m for at, m in enumerate(conversation.messages)
        )
        try:
            parts = self._text(replace(conversation, messages=messages)).whole.split(_MARK)
        except (BadRow, InputError):
            parts = []
        if "".join(parts) != whole or len(parts) != 2 * len(told) + 1:
            raise BadRow(
                Reason.TEMPLATE,
                "the chat template does not write a message's text in one place, as it is, so that"
                " it is not known which tokens are of"
                f" {', '.join(sorted({conversation.messages[at].role for at in told}))}; leave"
                " these roles, or marks on their messages, out",
            )
        ends = [*accumulate(map(len, parts))]
        return list(zip(ends[:-1:2], ends[1::2], strict=True))

    def _with_spans(self, tokens: list[int], whole: str, spans: list[tuple[int, int]]) -> list[int]:
        """A mask of these characters, and of the token that ends their turn."""
        starts = [start for start, _ in spans] + [len(whole)]
        exchanges = [
            (whole[start:end], whole[end:following])
            for (start, end), following in zip(spans, starts[1:], strict=True)
        ]
        ids, mask = self.chat.masked_ids([TrainingText(whole[: starts[0]], exchanges)])[0]
        found = [int(bool(m) and i == t) for i, m, t in zip(ids, mask, tokens, strict=False)]
        return found + [0] * (len(tokens) - len(found))


def _marked(message: Message) -> Message:
    """Return the message with its text between marks; white space around it stays outside, as
    templates may drop it."""
    said = message.content.strip()
    before, _, after = message.content.partition(said)
    return replace(message, content=f"{before}{_MARK}{said}{_MARK}{after}")
