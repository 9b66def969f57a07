"""`sft`: supervised fine-tuning, and the loop of every stage that trains on data that are there.
Its progress and totals are saved with each checkpoint.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

from engines.chat import Chat
from engines.chat.chat_folder import write_stops
from engines.megatron.ranks.rank import TrainerJob
from engines.megatron.ranks.trainer_group import TrainerGroup
from engines.megatron.spec import Optimizer, Role, TrainerSettings
from infra.processes.coroutines import run_both
from tasks.resources import lease_trainer
from tasks.saving import Saving, Written
from tasks.sft.sft_data import each_alike
from tasks.sft.spec import SftSpec
from tasks.sft.supply import B, Supply, open_supply
from tasks.stage import Reporter, StageContext, Stopped, require_inputs
from tasks.training_record import Series, Updates, changed_share

_STATE_FILE = "state.json"
_WINDOW = 20
"""number of last steps over which the summary averages"""
_CURVES = ("loss", "grad_norm", "lr")
_TRAINER_FOLDER = "trainer"
_CALL_S = 1.0
"""seconds of training that one call to the trainer is sized for: long enough that its cost
vanishes, short enough that progress is seen and a stop obeyed"""
_MAX_STEPS_A_CALL = 50
Steps = Callable[[TrainerGroup, list[B]], Awaitable[list[dict[str, float]]]]
"""one optimizer step a batch; metrics of each"""


class SftRecord:
    """Follows a run step by step; restored by a resumed attempt."""

    def __init__(
        self, *, reporter: Reporter, steps: int, no_gradient: str, averaged: Sequence[str] = ()
    ) -> None:
        """`no_gradient`: what to look at where no update had one; `averaged`: metrics of the
        trainer that are summed up as the loss is."""
        self._reporter = reporter
        self._steps = steps
        self._no_gradient = no_gradient
        self.step = 0
        self.series = Series((*_CURVES, *averaged))
        self.updates = Updates()
        self._last: dict[str, list[float]] = {name: [] for name in ("loss", *averaged)}
        """of the last steps that have the metric"""
        self._tokens = 0.0
        self._seconds = 0.0
        self._checkpoint_seconds = 0.0
        self._unsaved: dict[int, dict[str, float]] = {}

    def observe(self, steps: list[dict[str, float]]) -> None:
        """Take the metrics of the next steps in, and report them."""
        for metrics in steps:
            self.step += 1
            self._tokens += metrics["tokens"]
            self._seconds += metrics["seconds"]
            for name in self._last.keys() & metrics.keys():
                self._last[name] = [*self._last[name], metrics[name]][-_WINDOW:]
            self._unsaved[self.step] = metrics
            self.series.observe(self.step, metrics)
            self.updates.observe(metrics)
            self._reporter.metrics(self.step, metrics)
        self._reporter.progress(self.step, self._steps, f"loss {self._last['loss'][-1]:.4f}")

    def conclude(self) -> None:
        """Conclude the record at the end of the stage. Raises TrainingStopped where nothing was
        trained."""
        self.updates.require_gradient(self._no_gradient)
        for warning in self.updates.warnings():
            self._reporter.keep_warning(warning)

    def checkpointed(self, seconds: float) -> None:
        """Take in how long checkpoints stopped the run."""
        self._checkpoint_seconds += seconds

    def summary(self) -> dict[str, float]:
        """The artifact's metrics. Seconds are summed over all attempts; those of training are
        the trainer's own."""
        return {
            "steps": float(self.step),
            "loss": 0.0,
            **self.averages,
            "train_tokens": self._tokens,
            "train_seconds": self._seconds,
            "train_tokens_per_s": self._tokens / self._seconds if self._seconds else 0.0,
            "checkpoint_seconds": self._checkpoint_seconds,
        }

    def save(self, folder: Path) -> None:
        """Write what `restore` needs into a checkpoint's folder."""
        state = {
            "step": self.step,
            "last": self._last,
            "tokens": self._tokens,
            "seconds": self._seconds,
            "checkpoint_seconds": self._checkpoint_seconds,
            "metrics": self._unsaved,
            "series": self.series.state(),
            "updates": self.updates.state(),
        }
        (folder / _STATE_FILE).write_text(json.dumps(state))
        self._unsaved = {}

    @property
    def score(self) -> float:
        """Return what makes one checkpoint better than another: the lower mean loss."""
        return -fmean(self._last["loss"])

    @property
    def averages(self) -> dict[str, float]:
        """Means over the last steps."""
        return {name: fmean(values) for name, values in self._last.items() if values}

    def restore(self, folder: Path) -> None:
        """Take a checkpoint's record up, and report the steps since the one before it again:
        points still on their way when the attempt was killed would be missing otherwise, and the
        tracker drops those it has."""
        state: dict[str, Any] = json.loads((folder / _STATE_FILE).read_text())
        self.step, self._last = state["step"], state["last"]
        self._tokens, self._seconds = state["tokens"], state["seconds"]
        self._checkpoint_seconds = state["checkpoint_seconds"]
        self.series.restore(state["series"])
        self.updates.restore(state["updates"])
        for step, metrics in state["metrics"].items():
            self._reporter.metrics(int(step), metrics)


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
    weighed = each_alike if settings.aggregation == "sequence_mean" else list
    return await train_on(
        spec,
        context,
        record,
        lambda: open_supply(spec, context),
        lambda trainer, batches: trainer.sft_steps([weighed(batch) for batch in batches]),
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
    """A stage's schedule, as its settings say."""

    @property
    def steps(self) -> int: ...

    @property
    def checkpoint_every(self) -> int: ...

    @property
    def optimizer(self) -> Optimizer: ...

    @property
    def trainer(self) -> TrainerSettings: ...


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
