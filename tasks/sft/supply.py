"""What a supervised stage takes its batches from: a list of all, or a stream of the user's own
files, read as they are needed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from curricula.prompt_files.contamination import HeldOutWords
from curricula.prompt_files.prompt_curriculum import Files
from engines.batching import TokenSequence
from infra.data_files.rows import Reason, many_left_out
from infra.home import home
from infra.hooks import resolve
from infra.store.manifest import StageWarning
from tasks.message_files.render_rows import Renderer
from tasks.message_files.stream import MixedStream
from tasks.sft.sft_data import SftData, batches_for_steps, load_data, said_of_unrendered
from tasks.sft.spec import FILE_SUPPLY
from tasks.stage import Reporter, StageContext

if TYPE_CHECKING:
    from engines.megatron.ranks.trainer_group import TrainerGroup
    from tasks.sft.spec import SftSpec


_LITTLE = 0.01
"""share of trained tokens below which it is a warning"""
Batch = list[TokenSequence]
B = TypeVar("B")
"""what one optimizer step trains on"""
_POSITION_FILE = "data.json"


class Supply(Protocol[B]):
    """The batches of a stage's steps, in order."""

    def report(self, reporter: Reporter, stage: str) -> None:
        """Say what it is, before the first step."""
        ...

    async def begin(self, trainer: TrainerGroup) -> None:
        """Begin before the first step of all, with the weights that the stage begins with."""
        ...

    async def finish(self, trainer: TrainerGroup) -> None:
        """Finish after the last step, with the weights that the stage ends with."""
        ...

    def batches(self, start: int, stop: int) -> list[B]:
        """Return the batches of steps `start` to `stop` - 1; each call begins where the one before
        it ended, or where `restore` stood."""
        ...

    def warnings(self) -> Iterator[str]:
        """Return what was left out since the last call, for a person."""
        ...

    def conclusions(self) -> Iterator[StageWarning]:
        """Return what a person must know of what was trained on, at the end of the stage."""
        ...

    def save(self, folder: Path) -> None:
        """Write where it stands into a checkpoint's folder."""
        ...

    def restore(self, folder: Path) -> None: ...

    def summary(self) -> Mapping[str, float]:
        """Metrics of the artifact."""
        ...


def little_trained(trained: int, tokens: int) -> Iterator[StageWarning]:
    """Warn of so many tokens, where the loss is taken on next to none."""
    if trained < _LITTLE * tokens:
        yield StageWarning(
            what=f"the loss was taken on {trained} of {tokens} tokens",
            cause="the other tokens are prompts, or are marked as not to be trained on",
            advice="look at some rows with `tributary preview`",
            figures={"trained": trained, "tokens": tokens},
        )


def open_supply(spec: SftSpec, context: StageContext) -> Supply[Batch]:
    """Raises InputError for data that nothing can be learned from."""
    model = context.inputs["model"]
    if spec.settings.data is None:
        data = load_data(spec, model, context.inputs, context.scratch / "sequences")
        return ListSupply(spec, data)
    return resolve("data", FILE_SUPPLY, {})(spec, context)


class ListSupply:
    """Tokenised conversations, all of them known; a step's number says what is in its batch."""

    def __init__(self, spec: SftSpec, data: SftData) -> None:
        self._data = data
        self._size, self._seed = spec.settings.batch_size, spec.seed

    def report(self, reporter: Reporter, stage: str) -> None:
        data = self._data
        reporter.dataset(stage, len(data.sequences), data.source)
        for warning in self._warnings():
            reporter.keep_warning(warning)

    async def begin(self, trainer: TrainerGroup) -> None:
        """Nothing is needed."""

    async def finish(self, trainer: TrainerGroup) -> None:
        """Nothing is needed."""

    def batches(self, start: int, stop: int) -> list[Batch]:
        sequences = self._data.sequences
        indices = batches_for_steps(len(sequences), self._size, self._seed, start, stop)
        return [[sequences[i] for i in batch] for batch in indices]

    def warnings(self) -> Iterator[str]:
        yield from ()

    def conclusions(self) -> Iterator[StageWarning]:
        yield from ()

    def _warnings(self) -> Iterator[StageWarning]:
        data = self._data
        if data.too_long:
            total = data.too_long + len(data.sequences)
            yield StageWarning(
                what=f"{data.too_long} of {total} sequences were left out",
                cause="they are longer than the model's context",
                advice="shorten them, or take a model with a longer context",
                figures={"too_long": data.too_long, "sequences": total},
            )
        if data.unrendered:
            yield StageWarning(
                what=f"{data.source}: {said_of_unrendered(data.unrendered)}",
                advice="correct these conversations, or the chat template",
                figures={"unrendered": len(data.unrendered)},
            )
        yield from little_trained(data.sequences.trained, data.sequences.tokens)

    def save(self, folder: Path) -> None:
        """Nothing is needed."""

    def restore(self, folder: Path) -> None:
        """Nothing is needed."""

    def summary(self) -> Mapping[str, float]:
        return {
            "sequences": float(len(self._data.sequences)),
            "too_long": float(self._data.too_long),
            "without_thinking": float(self._data.without_thinking),
            "unrendered": float(len(self._data.unrendered)),
        }


def open_files(spec: SftSpec, context: StageContext) -> FileSupply:
    """Raises InputError for files without a row, and what opening them raises."""
    assert spec.settings.data is not None
    # Beside the attempt's own folder: the next attempt need not fetch and unpack them again.
    renderer, copies = Renderer.of_model(context.inputs["model"]), home() / "cache" / "files"
    held_out, share = _held_out_words(spec) if spec.held_out else None, spec.settings.nothink_share
    assert not isinstance(share, dict), "the spec refuses it"
    if share:
        renderer.chat.require_thinking_switch()
    stream = MixedStream(spec.settings.data, renderer, spec.seed, copies, held_out, share)
    return FileSupply(spec.settings.batch_size, stream)


def _never_trained(number: int, names: Sequence[str], bad: int) -> StageWarning:
    cause = f"the {bad} rows that were read of it are bad" if bad else "its turn never came"
    return StageWarning(
        what=f"nothing of data.{number} ({', '.join(names)[:200]}) was trained on",
        cause=cause,
        advice="correct the rows" if bad else "raise its `weight`, or `steps`",
        figures={"bad": bad},
    )


def _held_out_words(spec: SftSpec) -> HeldOutWords:
    words = HeldOutWords(spec.settings.decontaminate)
    for named in spec.held_out:
        Files(**named.options).add_held_out(words)
    return words


class FileSupply:
    """The sequences of files in the order of their stream."""

    def __init__(self, batch_size: int, stream: MixedStream) -> None:
        self._size = batch_size
        self._stream = stream
        self._warned = [0] * len(stream.streams)
        """rows left out that were told of, by stream"""

    def report(self, reporter: Reporter, stage: str) -> None:
        rows = sum(stream.num_rows for stream in self._stream.streams)
        names = [name for stream in self._stream.streams for name in stream.names]
        reporter.dataset(stage, rows, f"files {', '.join(names)}"[:500])

    async def begin(self, trainer: TrainerGroup) -> None:
        """Nothing is needed."""

    async def finish(self, trainer: TrainerGroup) -> None:
        """Nothing is needed."""

    def batches(self, start: int, stop: int) -> list[Batch]:
        return [[self._stream.take() for _ in range(self._size)] for _ in range(start, stop)]

    def warnings(self) -> Iterator[str]:
        for number, stream in enumerate(self._stream.streams):
            named = stream.counts.named
            yield from (f"left out: {line}" for line in named[self._warned[number] :])
            self._warned[number] = len(named)

    def conclusions(self) -> Iterator[StageWarning]:
        counts = [stream.counts for stream in self._stream.streams]
        for number, (stream, each) in enumerate(zip(self._stream.streams, counts, strict=True)):
            if not each.trained:
                yield _never_trained(number, stream.names, each.num_bad)
        yield from many_left_out(counts)
        yield from little_trained(
            sum(each.trained for each in counts), sum(each.tokens for each in counts)
        )

    def save(self, folder: Path) -> None:
        (folder / _POSITION_FILE).write_text(json.dumps(self._stream.position))

    def restore(self, folder: Path) -> None:
        position: dict[str, Any] = json.loads((folder / _POSITION_FILE).read_text())
        self._stream.continue_from(position)
        self._warned = [len(stream.counts.named) for stream in self._stream.streams]

    def summary(self) -> Mapping[str, float]:
        """Sum up the first epoch of every source: each row counts once."""
        counts = [stream.counts for stream in self._stream.streams]
        bad = sum((each.bad for each in counts), start=Counter[str]())
        tokens, contaminated = sum(each.tokens for each in counts), bad.pop(Reason.CONTAMINATED, 0)
        return {
            "rows": float(sum(stream.num_rows for stream in self._stream.streams)),
            "rows_read": float(sum(each.read for each in counts)),
            "bad_rows": float(bad.total()),
            "contaminated_rows": float(contaminated),
            **{f"bad_rows_{reason}": float(count) for reason, count in sorted(bad.items())},
            "without_thinking": float(sum(each.without_thinking for each in counts)),
            "trained_share": sum(each.trained for each in counts) / max(tokens, 1),
        }
