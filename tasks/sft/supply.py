"""What a supervised stage takes its batches from: a list of all, or a stream of files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from engines.batching import TokenSequence
from infra.hooks import resolve
from infra.store.manifest import StageWarning
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


class Supply(Protocol[B]):
    """The batches of a stage's steps, in order."""

    def report(self, reporter: Reporter, stage: str) -> None:
        """Say what it is, before the first step."""
        ...

    async def begin(self, trainer: TrainerGroup) -> None:
        """Before the first step of all, with the weights that the stage begins with."""
        ...

    async def finish(self, trainer: TrainerGroup) -> None:
        """After the last step, with the weights that the stage ends with."""
        ...

    def batches(self, start: int, stop: int) -> list[B]:
        """Those of steps `start` to `stop` - 1; each call begins where the one before it ended, or
        where `restore` stood."""
        ...

    def warnings(self) -> Iterator[str]:
        """What was left out since the last call, for a person."""
        ...

    def conclusions(self) -> Iterator[StageWarning]:
        """What a person must know of what was trained on, at the end of the stage."""
        ...

    def save(self, folder: Path) -> None:
        """Write where it stands into a checkpoint's folder."""
        ...

    def restore(self, folder: Path) -> None: ...

    def summary(self) -> Mapping[str, float]:
        """Metrics of the artifact."""
        ...


def little_trained(trained: int, tokens: int) -> Iterator[StageWarning]:
    """Of so many tokens, where the loss is taken on next to none."""
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
