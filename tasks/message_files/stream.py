"""Sequences of a source without end, in an order that follows from the seed alone.

    epoch   all chunks in a shuffled order
    window  as many chunks in a row as fill 64 MiB: their rows, shuffled; what is in memory
    row     parsed and rendered when it is its turn

The position names the next row, so that a stream which continues from it gives what an
undisturbed one would have given.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from curricula.prompt_files.contamination import HeldOutWords
from curricula.rows.conversation import Conversation
from engines.batching import TokenSequence
from infra.data_files.chunks import LocalFiles
from infra.data_files.files import find_files
from infra.data_files.rows import BadRow, Chunk, Reason, Rows, RowTally
from infra.errors import InputError
from tasks.message_files.render_rows import Renderer
from tasks.message_files.spec import MessageFiles

WINDOW_BYTES = 64 << 20
_AHEAD = 64
"""rows that are tokenised at once"""


@dataclass(slots=True)
class RowCounts(RowTally):
    """What became of the rows of the first epoch: each is counted once."""

    tokens: int = 0
    trained: int = 0
    """of the tokens, those that the loss is taken on"""
    without_thinking: int = 0
    """sequences of rows that were repeated without their thoughts"""

    def good(self, sequence: TokenSequence) -> None:
        self.read += 1
        self.tokens += len(sequence.tokens)
        self.trained += sum(sequence.loss_mask)

    def as_json(self) -> dict[str, Any]:
        own = ("tokens", "trained", "without_thinking")
        return RowTally.as_json(self) | {name: getattr(self, name) for name in own}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> RowCounts:
        tally = RowTally.from_json(value)
        return RowCounts(
            tally.read, tally.bad, tally.named, value["tokens"], value["trained"],
            value["without_thinking"],
        )  # fmt: skip


class MessageStream:
    """The sequences of one source."""

    def __init__(
        self,
        source: MessageFiles,
        renderer: Renderer,
        seed: str,
        scratch: Path,
        held_out: HeldOutWords | None = None,
        nothink_share: float = 0.0,
    ) -> None:
        """`nothink_share`: of the rows with thoughts, those that come a second time without them.

        Raises InputError for files without a row, and what finding and opening them raises.
        """
        self._source = source
        self._renderer = renderer
        self._held_out = held_out
        self._nothink_share = nothink_share
        self._seed = seed
        self._files = LocalFiles(find_files(source.files), scratch)
        if not self._files.num_rows:
            raise InputError(f"files: no row in {', '.join(source.files)}")
        self.counts = RowCounts()
        self._epoch = self._window = self._row = 0
        self._has_good = False
        self._windows = self._windows_of(0)
        self._open: _Window | None = None
        self._ready: deque[TokenSequence | BadRow | None] = deque()
        """what became of the rows from `_row` on"""

    @property
    def num_rows(self) -> int:
        return self._files.num_rows

    @property
    def names(self) -> list[str]:
        return self._files.names

    def take(self) -> TokenSequence:
        """The next one. Raises TrainingStopped for too many bad rows, InputError if all are."""
        while True:
            window = self._opened()
            if self._row == len(window.order):
                self._next_window()
                continue
            if not self._ready:
                self._ready = deque(self._rendered_ahead(window))
            place = window.place(self._row)
            self._row += 1
            made = self._ready.popleft()
            if self._epoch == 0:
                self._count(window, place, made)
            if isinstance(made, TokenSequence):
                self._has_good = True
                return made

    @property
    def position(self) -> dict[str, Any]:
        """Return where it stands, as plain JSON types; the next `take` changes nothing in it."""
        return {
            "epoch": self._epoch,
            "window": self._window,
            "row": self._row,
            "has_good": self._has_good,
            "counts": self.counts.as_json(),
        }

    def continue_from(self, position: Mapping[str, Any]) -> None:
        """Stand where another stream of the same files and seed stood."""
        self._epoch, self._window = position["epoch"], position["window"]
        self._row, self._has_good = position["row"], position["has_good"]
        self.counts = RowCounts.from_json(position["counts"])
        self._windows, self._open = self._windows_of(self._epoch), None
        self._ready.clear()

    def _rendered_ahead(self, window: _Window) -> list[TokenSequence | BadRow | None]:
        """The next rows, several at once; what becomes of a row depends on no other. None of one
        that would come a second time, and has no thought or is bad."""
        ahead = range(self._row, min(self._row + _AHEAD, len(window.order)))
        read = [self._read(window, window.place(at)) for at in ahead]
        made = iter(self._renderer.render_all([each for each in read if each is not None]))
        return [None if each is None else next(made) for each in read]

    def _read(self, window: _Window, place: _Place) -> Conversation | BadRow | None:
        read = self._conversation(window.rows[place.rows], place.row)
        if not place.is_repeated:
            return read
        return None if isinstance(read, BadRow) else self._renderer.without_thoughts(read)

    def _conversation(self, rows: Rows, index: int) -> Conversation | BadRow:
        try:
            read = self._source.conversations(rows.row(index))[0]
        except BadRow as error:
            return error
        return self._contaminated(read) or read

    def _contaminated(self, read: Conversation) -> BadRow | None:
        if self._held_out is None:
            return None
        asked = "\n".join(m.content for m in read.messages if m.role == "user")
        shared = self._held_out.shared_with(asked)
        if shared is None:
            return None
        run, other = shared
        return BadRow(Reason.CONTAMINATED, f"shares {run[:160]!r} with {other}, which is held out")

    def _count(self, window: _Window, place: _Place, made: TokenSequence | BadRow | None) -> None:
        if place.is_repeated:
            self.counts.without_thinking += isinstance(made, TokenSequence)
            return
        if isinstance(made, TokenSequence):
            self.counts.good(made)
        elif made is not None:
            self._count_bad(self._line(window, place), made)

    def _count_bad(self, where: str, made: BadRow) -> None:
        self.counts.left_out(where, made)
        source = self._source
        self.counts.judge(source.files, self.num_rows, source.max_bad_share)

    def _opened(self) -> _Window:
        if self._open is None:
            chunks = self._windows[self._window]
            rows = self._files.read_together(chunks)
            starts = list(accumulate(map(len, rows), initial=0))
            window = _Window(chunks, rows, starts, list(range(starts[-1])))
            if self._nothink_share:
                window.order.extend(
                    starts[-1] + number
                    for number in range(starts[-1])
                    if self._is_repeated(self._line(window, window.place(number)))
                )
            random.Random(f"{self._seed}/{self._epoch}/{self._window}").shuffle(window.order)
            self._open = window
        return self._open

    def _line(self, window: _Window, place: _Place) -> str:
        """File and line of a row."""
        name = self._files.names[window.chunks[place.rows].file]
        return f"{name}:{window.rows[place.rows].line(place.row)}"

    def _is_repeated(self, line: str) -> bool:
        """Tell whether a row is repeated: the same in every epoch."""
        return random.Random(f"{self._seed}/nothink/{line}").random() < self._nothink_share

    def _next_window(self) -> None:
        self._open, self._row = None, 0
        self._window += 1
        if self._window < len(self._windows):
            return
        if not self._has_good:
            raise InputError(
                f"files: no row of {', '.join(self._source.files)} can be trained on: "
                + self.counts.said
            )
        self._epoch, self._window = self._epoch + 1, 0
        self._windows = self._windows_of(self._epoch)

    def _windows_of(self, epoch: int) -> list[list[Chunk]]:
        chunks = list(self._files.chunks)
        random.Random(f"{self._seed}/{epoch}").shuffle(chunks)
        windows: list[list[Chunk]] = []
        room = 0
        for chunk in chunks:
            if chunk.num_bytes > room:
                windows.append([])
                room = WINDOW_BYTES
            windows[-1].append(chunk)
            room -= chunk.num_bytes
        return windows


class _Place(NamedTuple):
    """A row's turn in a window."""

    rows: int
    """place of its chunk"""
    row: int
    """its place there"""
    is_repeated: bool = False
    """without its thoughts"""


@dataclass(frozen=True, slots=True)
class _Window:
    chunks: Sequence[Chunk]
    rows: Sequence[Rows]
    """of each chunk"""
    starts: Sequence[int]
    """how many rows are in the chunks before each, and last in all"""
    order: list[int]
    """numbers of rows; from the number of all on they begin anew, for rows without their thoughts.
    Numbers, as the garbage collector goes through a hundred thousand objects again and again"""

    def place(self, at: int) -> _Place:
        repeats, number = divmod(self.order[at], self.starts[-1])
        rows = bisect_right(self.starts, number) - 1
        return _Place(rows, number - self.starts[rows], bool(repeats))


class MixedStream:
    """Several sources: each next sequence is of the one that lags furthest behind its weight."""

    def __init__(
        self,
        sources: Sequence[MessageFiles],
        renderer: Renderer,
        seed: int,
        scratch: Path,
        held_out: HeldOutWords | None = None,
        nothink_share: float = 0.0,
    ) -> None:
        """Raises what MessageStream raises, and names the source."""
        self._weights = [source.weight for source in sources]
        self.streams: list[MessageStream] = []
        for number, source in enumerate(sources):
            try:
                rendered = source.renderer(renderer)
                stream = MessageStream(
                    source, rendered, f"{seed}/{number}", scratch, held_out, nothink_share
                )
            except InputError as error:
                raise InputError(f"data.{number}.{error}") from error
            self.streams.append(stream)
        self._taken = [0] * len(sources)

    def take(self) -> TokenSequence:
        """The next one. Raises what its source's stream raises."""
        chosen = self._furthest_behind()
        self._taken[chosen] += 1
        return self.streams[chosen].take()

    def take_by_tokens(self) -> tuple[int, TokenSequence]:
        """The next one with the number of its source, where weights are of tokens: no source is
        ever further ahead of its share than its last sequence is long."""
        chosen = self._furthest_behind()
        sequence = self.streams[chosen].take()
        self._taken[chosen] += len(sequence.tokens)
        return chosen, sequence

    def _furthest_behind(self) -> int:
        after = [(t + 1) / w for t, w in zip(self._taken, self._weights, strict=True)]
        return after.index(min(after))

    @property
    def position(self) -> dict[str, Any]:
        return {"taken": list(self._taken), "streams": [s.position for s in self.streams]}

    def continue_from(self, position: Mapping[str, Any]) -> None:
        self._taken = list(position["taken"])
        for stream, its in zip(self.streams, position["streams"], strict=True):
            stream.continue_from(its)
