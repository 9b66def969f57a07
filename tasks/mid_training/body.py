"""`mid_training`: learn texts, packed into long sequences, before instructions are taught.

documents of several sources, mixed by tokens -> a window of them -> best fit into sequences
-> a step's sequences, whose documents do not see each other -> the trainer and the loop of `sft`
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from engines.families.common.model_config import read_config
from infra.home import home
from infra.store.manifest import StageWarning
from infra.store.origins import with_config
from tasks.message_files.render_rows import Renderer
from tasks.mid_training.spec import MidTrainingSettings, MidTrainingSpec
from tasks.sft.body import SftRecord, train_on
from tasks.sft.supply import FileSupply
from tasks.stage import StageContext, require_inputs

if TYPE_CHECKING:
    from engines.megatron.ranks.trainer_group import TrainerGroup
    from tasks.mid_training.packed_stream import PackedStream
    from tasks.sft.supply import Batch

EFFICIENCY = "packing_efficiency"
_WELL_PACKED = 0.9


async def run(spec: MidTrainingSpec, context: StageContext) -> dict[str, float]:
    """Train `inputs["model"]`; `context.out` becomes an HF folder. Raises as `sft`'s `run`."""
    settings = spec.settings
    require_inputs(context, ["model"])
    context = _with_positions(settings, context)
    record = SftRecord(
        reporter=context.reporter,
        steps=settings.steps,
        no_gradient="No token of the data counts in the loss: look at its `roles` and `weight`"
        " fields, with `tributary preview`",
    )

    async def steps(trainer: TrainerGroup, batches: list[Batch]) -> list[dict[str, float]]:
        made = await trainer.sft_steps(batches)
        return [each | {EFFICIENCY: each["tokens"] / settings.step_tokens} for each in made]

    return await train_on(spec, context, record, lambda: open_texts(spec, context), steps)


def _with_positions(settings: MidTrainingSettings, context: StageContext) -> StageContext:
    """The context with the model as it is trained: its files, and a `config.json` of its own.
    Raises InputError for sequences longer than the model reads, and for positions that it cannot
    have."""
    given = context.inputs["model"]
    config = settings.config_of(read_config(given))
    if settings.rope is None:
        return context
    text = json.dumps(config, indent=2) + "\n"
    folder = with_config(given, text, context.scratch / "model")
    return replace(context, inputs={**context.inputs, "model": folder})


def open_texts(spec: MidTrainingSpec, context: StageContext) -> PackedSupply:
    """Raises InputError for files without a row, and what opening them raises."""
    model, settings = context.inputs["model"], spec.settings
    # Beside the attempt's own folder: the next attempt need not fetch and unpack them again.
    packed = settings.packed(Renderer.of_model(model), spec.seed, home() / "cache" / "files")
    return PackedSupply(settings.batch_size, packed)


class PackedSupply(FileSupply):
    """The batches of a stage: each has the documents of its sequences."""

    def __init__(self, batch_size: int, packed: PackedStream) -> None:
        super().__init__(batch_size, packed)
        self._packed = packed

    def batches(self, start: int, stop: int) -> list[Batch]:
        taken = (
            [self._packed.take_packed() for _ in range(self._size)] for _ in range(start, stop)
        )
        return [[piece for packed in step for piece in packed] for step in taken]

    def conclusions(self) -> Iterator[StageWarning]:
        yield from super().conclusions()
        packed = self._packed
        if packed.efficiency < _WELL_PACKED:
            yield StageWarning(
                what=f"only {packed.efficiency:.1%} of the sequences' places hold tokens",
                cause="many documents are longer than half a sequence, and few fit beside them",
                advice="raise `sequence_length`, or add a source of shorter documents",
                figures={EFFICIENCY: packed.efficiency},
            )

    def summary(self) -> Mapping[str, float]:
        packed = self._packed
        by_source = enumerate(packed.tokens)
        return {
            **super().summary(),
            "packed_sequences": float(packed.sequences),
            EFFICIENCY: packed.efficiency,
            "documents_cut": float(packed.cut),
            "pieces": float(packed.pieces),
            "pieces_unlearned": float(packed.unlearned),
            **{f"tokens_of_data_{number}": float(count) for number, count in by_source},
        }
