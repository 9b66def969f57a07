"""What a supervised stage takes its batches from: a list in memory, or a stream of files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from engines.batching import TokenSequence
from tasks.sft.data import SftData, batches_for_steps, load_data
from tasks.stage import Reporter, StageContext

if TYPE_CHECKING:
    from tasks.message_files.stream import MixedStream
    from tasks.sft.spec import SftSpec

_POSITION_FILE = "data.json"
Batches = list[list[TokenSequence]]


class Supply(Protocol):
    """The batches of a stage's steps, in order."""

    def report(self, reporter: Reporter, stage: str) -> None:
        """Say what it is, before the first step."""
        ...

    def batches(self, start: int, stop: int) -> Batches:
        """Those of steps `start` to `stop` - 1; each call begins where the one before it ended, or
        where `restore` stood."""
        ...

    def warnings(self) -> Iterator[str]:
        """What was left out since the last call, for a person."""
        ...

    def save(self, folder: Path) -> None:
        """Write where it stands into a checkpoint's folder."""
        ...

    def restore(self, folder: Path) -> None: ...

    def summary(self) -> Mapping[str, float]:
        """Metrics of the artifact."""
        ...


def open_supply(spec: SftSpec, context: StageContext) -> Supply:
    """Raises InputError for data that nothing can be learned from."""
    model = context.inputs["model"]
    if spec.settings.data is None:
        return ListSupply(spec, load_data(spec, model, context.inputs.get("data")))
    from tasks.message_files.rendering import Renderer
    from tasks.message_files.stream import MixedStream

    renderer, scratch = Renderer.of_model(model), context.scratch / "files"
    stream = MixedStream(spec.settings.data, renderer, spec.seed, scratch)
    return FileSupply(spec.settings.batch_size, stream)


class ListSupply:
    """Tokenised conversations in memory; a step's number says what is in its batch."""

    def __init__(self, spec: SftSpec, data: SftData) -> None:
        self._data = data
        self._size, self._seed = spec.settings.batch_size, spec.seed

    def report(self, reporter: Reporter, stage: str) -> None:
        data = self._data
        reporter.dataset(stage, len(data.sequences), data.source)
        if data.too_long:
            reporter.warn(
                f"{data.too_long} of {data.too_long + len(data.sequences)} sequences are longer"
                " than the model's context and were left out"
            )

    def batches(self, start: int, stop: int) -> Batches:
        sequences = self._data.sequences
        indices = batches_for_steps(len(sequences), self._size, self._seed, start, stop)
        return [[sequences[i] for i in batch] for batch in indices]

    def warnings(self) -> Iterator[str]:
        yield from ()

    def save(self, folder: Path) -> None:
        """Nothing is needed."""

    def restore(self, folder: Path) -> None:
        """Nothing is needed."""

    def summary(self) -> Mapping[str, float]:
        return {
            "sequences": float(len(self._data.sequences)),
            "too_long": float(self._data.too_long),
            "without_thinking": float(self._data.without_thinking),
        }


class FileSupply:
    """The user's own files, read as they are needed."""

    def __init__(self, batch_size: int, stream: MixedStream) -> None:
        self._size = batch_size
        self._stream = stream
        self._warned = 0

    def report(self, reporter: Reporter, stage: str) -> None:
        rows = sum(stream.num_rows for stream in self._stream.streams)
        names = [name for stream in self._stream.streams for name in stream.names]
        reporter.dataset(stage, rows, f"files {', '.join(names)}"[:500])

    def batches(self, start: int, stop: int) -> Batches:
        return [[self._stream.take() for _ in range(self._size)] for _ in range(start, stop)]

    def warnings(self) -> Iterator[str]:
        named = [line for stream in self._stream.streams for line in stream.counts.named]
        yield from (f"left out: {line}" for line in named[self._warned :])
        self._warned = len(named)

    def save(self, folder: Path) -> None:
        (folder / _POSITION_FILE).write_text(json.dumps(self._stream.position))

    def restore(self, folder: Path) -> None:
        position: dict[str, Any] = json.loads((folder / _POSITION_FILE).read_text())
        self._stream.continue_from(position)
        self._warned = sum(len(stream.counts.named) for stream in self._stream.streams)

    def summary(self) -> Mapping[str, float]:
        """Of the first epoch of every source: each row counts once."""
        counts = [stream.counts for stream in self._stream.streams]
        bad = sum((each.bad for each in counts), start=type(counts[0].bad)())
        tokens = sum(each.tokens for each in counts)
        return {
            "rows": float(sum(stream.num_rows for stream in self._stream.streams)),
            "rows_read": float(sum(each.read for each in counts)),
            "bad_rows": float(bad.total()),
            **{f"bad_rows_{reason}": float(count) for reason, count in sorted(bad.items())},
            "trained_share": sum(each.trained for each in counts) / max(tokens, 1),
        }
