"""Documents packed into sequences of one length."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from engines.batching import TokenSequence, best_fit
from tasks.message_files.render_rows import Renderer
from tasks.message_files.spec import MessageFiles
from tasks.message_files.stream import MixedStream

_WINDOW_TOKENS, _FEWEST, _MOST = 1 << 21, 16, 64
"""tokens of a window of documents, and how many sequences these are at least and at most"""
_Piece: TypeAlias = tuple[int, TokenSequence]
"""a document or a piece of one, with the number of its source"""


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
        self.cut = self.pieces = 0
        """documents that were longer than a sequence, and what they were cut into"""
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

    @property
    def position(self) -> dict[str, Any]:
        """Where it stands, as plain JSON types."""
        taken = {"used": self._used, "sequences": self.sequences, "tokens": list(self.tokens)}
        return {"window": self._before, **taken}

    def continue_from(self, position: Mapping[str, Any]) -> None:
        """Stand where another stream of the same files, length and seed stood."""
        began = position["window"]
        self._number, self.cut, self.pieces = began["number"], began["cut"], began["pieces"]
        self._left = [(source, TokenSequence(*piece)) for source, *piece in began["left"]]
        super().continue_from(began["texts"])
        self._pack()
        self._used = position["used"]
        self.sequences, self.tokens = position["sequences"], list(position["tokens"])

    def _pack(self) -> None:
        """Open the next window."""
        self._before = {
            "number": self._number, "cut": self.cut, "pieces": self.pieces,
            "left": [[source, p.tokens, p.loss_mask, p.weight] for source, p in self._left],
            "texts": super().position,
        }  # fmt: skip
        pieces = [*self._left]
        room = self._at_window - sum(len(piece.tokens) for _, piece in pieces)
        while room > 0:
            source, document = self.take_by_tokens()
            found = [(source, piece) for piece in cut(document, self._length)]
            self.cut += len(found) > 1
            self.pieces += len(found) if len(found) > 1 else 0
            pieces += found
            room -= len(document.tokens)
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
