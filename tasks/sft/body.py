"""`sft`: supervised fine-tuning, and the loop of every stage that trains on data that are there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from engines.chat import Chat
from engines.chat.chat_folder import write_stops
from engines.megatron.ranks.rank import TrainerJob
from engines.megatron.ranks.trainer_group import TrainerGroup
from engines.megatron.spec import Optimizer, Role, TrainerSettings
from infra.processes.coroutines import run_both
from tasks.saving import Saving, Written
from tasks.sft.sft_record import SftRecord
from tasks.sft.spec import SftSpec
from tasks.sft.supply import B, Supply, open_supply
from tasks.stage import StageContext, Stopped, require_inputs
from tasks.trainers import lease_trainer
from tasks.updates import changed_share

_TRAINER_FOLDER = "trainer"
_CALL_S = 1.0
"""seconds of training that one call to the trainer is sized for: long enough that its cost
vanishes, short enough that progress is seen and a stop obeyed"""
_MAX_STEPS_A_CALL = 50


async def run(spec: SftSpec, context: StageContext) -> dict[str, float]:
    """Train `inputs["model"]`; `context.out` becomes an HF folder.

    Raises InputError, EngineError, TrainingStopped (NaN); Stopped after a checkpoint.
    """
    settings = spec.settings
    has_own = spec.curriculum is not None or settings.data is not None
    require_inputs(context, ["model"] if has_own else ["model", "data"])
    record = SftRecord(
        reporter=context.reporter,
        steps=settings.steps,
        no_gradient="No token of the data counts in the loss: look at its `weight`, `train` and"
        " `loss` fields, with `tributary preview`",
    )
    return await train_on(
        spec,
        context,
        record,
        lambda: open_supply(spec, context),
        lambda trainer, batches: trainer.sft_steps(batches),
    )


class LearnsFromData(Protocol):
    """What the spec of a stage says that trains a policy on data that are there."""

    @property
    def seed(self) -> int: ...

    @property
    def settings(self) -> Schedule: ...

    @property
    def trained_roles(self) -> tuple[Role, ...]: ...


class Schedule(Protocol):
    """Of its settings."""

    @property
    def steps(self) -> int: ...

    @property
    def checkpoint_every(self) -> int: ...

    @property
    def optimizer(self) -> Optimizer: ...

    @property
    def trainer(self) -> TrainerSettings: ...


Steps = Callable[[TrainerGroup, list[B]], Awaitable[list[dict[str, float]]]]
"""one optimizer step a batch; metrics of each"""


async def train_on(
    spec: LearnsFromData,
    context: StageContext,
    record: SftRecord,
    open_data: Callable[[], Supply[B]],
    steps: Steps[B],
) -> dict[str, float]:
    """Train `inputs["model"]` on the supply's batches, with checkpoints, and export it; returns the
    artifact's metrics. Raises as `run`."""
    settings, model = spec.settings, context.inputs["model"]
    job = TrainerJob(
        settings.trainer,
        settings.optimizer,
        context.resources.trainer,
        model,
        spec.seed,
        settings.steps,
        context.hooks,
        policy=spec.trained_roles[0],
    )
    async with AsyncExitStack() as stack:
        trainer, supply = await run_both(
            lease_trainer(stack, context, job), asyncio.to_thread(open_data)
        )
        supply.report(context.reporter, context.name)
        await _begin_or_resume(context, record, supply, trainer)
        saving = await stack.enter_async_context(Saving(context, record.checkpointed))
        began = time.monotonic()
        await _train(settings, context, supply, record, saving, trainer, steps)
        worked = time.monotonic() - began
        record.conclude()
        await supply.finish(trainer)
        for warning in supply.conclusions():
            context.reporter.keep_warning(warning)
        await trainer.export(context.out, model)
        record.updates.require_change(await changed_share(model, context.out), context.reporter)
        write_stops(context.out, Chat.load(model).stop_token_ids)
        record.series.write(context.out)
        return {
            **record.summary(),
            **supply.summary(),
            "work_seconds": worked,
        }


async def _begin_or_resume(
    context: StageContext, record: SftRecord, supply: Supply[Any], trainer: TrainerGroup
) -> None:
    """Continue from the newest checkpoint, if there is one."""
    latest = await asyncio.to_thread(context.checkpoints.latest)
    if latest is None:
        await supply.begin(trainer)
        return
    _, folder = latest
    record.restore(folder)
    supply.restore(folder)
    await trainer.load(folder / _TRAINER_FOLDER)


async def _train(
    settings: Schedule,
    context: StageContext,
    supply: Supply[B],
    record: SftRecord,
    saving: Saving,
    trainer: TrainerGroup,
    steps: Steps[B],
) -> None:
    """Train from where the record stands to the end of the stage."""
    a_call = 1
    while record.step < settings.steps:
        to_checkpoint = settings.checkpoint_every - record.step % settings.checkpoint_every
        count = min(a_call, to_checkpoint, settings.steps - record.step)
        batches = await asyncio.to_thread(supply.batches, record.step, record.step + count)
        for warning in supply.warnings():
            context.reporter.warn(warning)
        await saving.wait_for_snapshot()
        began = time.monotonic()
        record.observe(await steps(trainer, batches))
        a_call = _next_size(count, time.monotonic() - began)
        over = record.step == settings.steps
        stopping = context.stop.requested and not over
        if stopping or (record.step % settings.checkpoint_every == 0 and not over):
            await saving.begin(
                record.step, record.score, partial(_snapshot, record, supply, trainer)
            )
        if stopping:
            raise Stopped(
                f"stopped after step {record.step}; the stage continues from this checkpoint"
            )


def _next_size(steps: int, seconds: float) -> int:
    """Optimizer steps of the next call, given how long the last call's took."""
    return max(1, min(_MAX_STEPS_A_CALL, round(steps * _CALL_S / max(seconds, 1e-3))))


def _snapshot(
    record: SftRecord, supply: Supply[Any], trainer: TrainerGroup, folder: Path
) -> Coroutine[Any, Any, Written]:
    """The record and the data's position as they are now; the ranks stay as they are until the next
    update."""
    record.save(folder)
    supply.save(folder)
    return _begin_save(trainer, folder / _TRAINER_FOLDER)


async def _begin_save(trainer: TrainerGroup, folder: Path) -> Written:
    await trainer.begin_save(folder)
    return trainer.saved
