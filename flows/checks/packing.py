"""Checks what a `mid_training` stage makes of its files: the first documents, packed as the stage
packs them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from fsspec.implementations.local import LocalFileSystem

from engines.families.common.registry import model_shape
from flows.checks.data import renderer_of
from flows.checks.engines import config_made
from flows.plan import PlannedStage
from flows.recipe import Recipe
from infra.data_files.files import find_files
from infra.errors import InputError, TrainingStopped, TributaryError
from infra.home import home
from tasks.mid_training.spec import MidTrainingSpec

if TYPE_CHECKING:
    from tasks.mid_training.packed_stream import PackedStream

_MOST = 64
"""sequences that are packed"""


def length_problems(plan: Sequence[PlannedStage]) -> Iterator[str]:
    """Sequences that are longer than the model reads, and positions that it cannot be given."""
    for stage in plan:
        if not isinstance(stage.spec, MidTrainingSpec):
            continue
        config = config_made(plan, stage.inputs["model"])
        try:
            if config is not None:
                model_shape(stage.spec.settings.config_of(config))
        except InputError as error:
            yield f"{stage.where}.{error}"


def packing_notes(recipe: Recipe, plan: Sequence[PlannedStage]) -> Iterator[str]:
    """How full sequences are, what is cut or left out, and how often each source is gone through;
    nothing for files or a base elsewhere, and for a base whose tokenizer is not made yet."""
    renderer = renderer_of(recipe.base) if recipe.base.random is None else None
    for stage in plan:
        spec = stage.spec
        if renderer is None or not isinstance(spec, MidTrainingSpec):
            continue
        try:
            files = [file for source in spec.settings.data for file in find_files(source.files)]
            if all(isinstance(file.fs, LocalFileSystem) for file in files):
                packed = spec.settings.packed(renderer, spec.seed, home() / "cache" / "files")
                yield f"{stage.where}: {_said(packed, spec)}"
        except TrainingStopped as error:  # of rows behind the first ones
            yield f"{stage.where}: the stage will stop: {error}"
        except TributaryError:  # what is wrong with the files is said elsewhere
            continue


def _said(packed: PackedStream, spec: MidTrainingSpec) -> str:
    settings = spec.settings
    count = min(_MOST, settings.steps * settings.batch_size)
    for _ in range(count):
        packed.take_packed()
    read = sum(stream.counts.read for stream in packed.streams)
    bad = sum(stream.counts.num_bad for stream in packed.streams)
    whole = settings.steps * settings.step_tokens * packed.efficiency
    weights = sum(source.weight for source in settings.data)
    passes = [
        f"data.{number} about {whole * source.weight / weights / tokens:.2g} times"
        for number, (source, stream) in enumerate(zip(settings.data, packed.streams, strict=True))
        if (tokens := stream.counts.tokens / max(stream.counts.read, 1) * stream.num_rows)
    ]
    return (
        f"its first {count} sequences of {settings.sequence_length} tokens are"
        f" {packed.efficiency:.1%} full; of {read} rows {packed.cut} are longer and cut into"
        f" {packed.pieces} pieces, {bad} are bad and left out; {settings.steps} steps take"
        f" {whole:,.0f} tokens: {', '.join(passes)}"
    )
