"""`rl`: reinforcement learning with verifiable rewards over one or more domains."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from engines.devices.sharing import SeparateDevices, SharedDevices
from engines.rollout.consumer import StepResult
from engines.rollout.loop import Loop
from engines.rollout.metrics import StopRule, counting
from engines.rollout.published_policy import PublishedPolicy
from engines.rollout.records.dataset import read_admitted
from engines.rollout.records.gallery import ROLLOUTS_FILE, Gallery
from engines.rollout.records.take_log import TAKES_FILE
from engines.sglang.fleet import CacheUse, Fleet, prewarm
from infra.processes.coroutines import run_both
from infra.store.manifest import StageWarning
from infra.timeline import TAKES, TICKETS, Timeline, mark, recording, write_trace
from tasks.admitted import only_admitted
from tasks.mine.spec import MINED
from tasks.nothink import curves_by_mode, in_both_modes
from tasks.resources import context_length, lease_fleet, open_parts, read_fitting_rows
from tasks.rl.curve import more_curves
from tasks.rl.evaluation import EvaluationSchedule, evaluator_of
from tasks.rl.phases import PhasedTickets, open_phases
from tasks.rl.spec import RlSpec
from tasks.rl.stage_loop import data_source_of, loop_of, open_filter
from tasks.rl.stage_record import RlRecord
from tasks.rl.temperature import control_of
from tasks.rl.trained_roles import Roles, lease_roles
from tasks.rollout_workers.rollers import Rollers
from tasks.saving import Saving, Written
from tasks.served.served_roles import RoleClients, ServedTeachers
from tasks.stage import StageContext, Stopped


async def run(spec: RlSpec, context: StageContext) -> dict[str, float]:
    """Train `inputs["model"]`; `context.out` becomes an HF folder with `rollouts.parquet`,
    `takes.jsonl`, the files of `training/` (curve, series, counts, trace) and, with
    `keep_rollouts`, `trained/`.

    Raises TrainingStopped, AgreementError, EngineError, InputError; Stopped after a checkpoint.
    """
    if is_nothing_mined(context):
        return await asyncio.to_thread(pass_on, context)
    return await train(spec, context, None)


@dataclass(frozen=True, slots=True)
class Teachers:
    """By domain."""

    folders: Mapping[str, Path]
    """models in the trainer's ranks"""
    served: ServedTeachers


async def train(spec: RlSpec, context: StageContext, teachers: Teachers | None) -> dict[str, float]:
    """Train by RL as `run` does; `opd` does it with `teachers`."""
    model = context.inputs["model"]
    async with AsyncExitStack() as stack:
        asked = RoleClients(stack, spec.domains, teachers.served.roles if teachers else ())
        if teachers:
            teachers.served.connect(stack, asked)
        (roles, fleet), (chat, domains) = await run_both(
            _lease(stack, spec, context, model, teachers, asked),
            open_parts(
                stack,
                model,
                spec.domains,
                asked,
                rolls_here=not context.resources.rollout_workers,
            ),
        )
        longest = context_length(spec.settings.fleet, model)
        await read_fitting_rows(context, domains, chat, longest)
        modes = partial(in_both_modes, spec.settings.nothink_share, "rl", spec.seed, chat)
        phases = await open_phases(spec, context, domains, modes)
        domains = await asyncio.to_thread(modes, await only_admitted(context, domains))
        timeline = Timeline()
        stack.enter_context(recording(timeline))
        watch = StopRule(**spec.settings.bounds.model_dump())
        record = RlRecord(
            watch=watch,
            gallery=Gallery(chat),
            reporter=context.reporter,
            steps=spec.settings.steps,
            notes=context.checkpoints,
            curves=[*curves_by_mode(domains), *more_curves(spec)],
        )
        devices = _devices(context, roles, fleet)
        policy = PublishedPolicy(roles.trainer, fleet, record.version, devices)
        stack.push_async_callback(policy.close)
        fleet.client.on_trouble = policy.repair
        fleet.client.must_wait = lambda: policy.is_changing
        group_filter = await open_filter(stack, spec.settings)
        rollers = Rollers(
            stack, context, fleet, spec.settings.fleet, spec.domains, asked, spec.seed
        )
        roller = await rollers.of(model, chat)
        schedule = spec.settings.evaluate
        evaluator = evaluator_of(schedule, roller, domains, spec.seed)
        record.temperatures = control_of(spec, context, roller, domains, policy)
        evaluation = EvaluationSchedule(schedule, evaluator, context, record, policy)
        stack.push_async_callback(evaluation.close)
        source = phases or data_source_of(spec, domains, context.checkpoints)
        loop = loop_of(
            spec, context, source, roller, roles, policy, group_filter, evaluation.finish
        )
        loop.consumer.ask_teachers = teachers.served.ask if teachers else None
        await _resume(context, record, loop, roles, policy, devices, timeline)
        saving = await stack.enter_async_context(Saving(context, record.checkpointed))
        began = time.monotonic()
        await _train(
            spec, context, record, loop, saving, roles, fleet, evaluation, devices, timeline
        )
        worked = time.monotonic() - began
        record.conclude(spec.settings.algorithm.needs, [domain.name for domain in domains])
        if devices.are_shared:
            await evaluation.finish()
        async with devices.keeping():
            changed = await roles.export(context.out, model)
        record.updates.require_change(changed, context.reporter)
        await evaluation.finish()
        record.conclude_held_out()
        await _write_records(context, record, loop, timeline)
        return {**record.summary(), "work_seconds": worked}


async def _write_records(
    context: StageContext, record: RlRecord, loop: Loop, timeline: Timeline
) -> None:
    """What the stage did, beside its model."""
    await asyncio.to_thread(record.write_rollouts, context.out)
    record.curve.write(context.out)
    record.series.write(context.out)
    record.counts.write(context.out)
    if isinstance(phases := loop.producer.source, PhasedTickets):
        phases.write(context.out)
    if record.temperatures is not None:
        record.temperatures.write(context.out)
    takes = await loop.takes.export(context.out)
    missing = await loop.trained.export(context.out, takes) if loop.trained else []
    if missing:
        context.reporter.warn(f"no rollouts are kept: steps {missing} were trained without")
    write_trace(timeline, context.out)


async def _lease(
    stack: AsyncExitStack,
    spec: RlSpec,
    context: StageContext,
    model: Path,
    teachers: Teachers | None,
    asked: RoleClients,
) -> tuple[Roles, Fleet]:
    """Ranks first, then servers: every stage in this order, or two could wait for each other. Where
    they share devices the ranks sleep before servers see how much memory there is."""
    if not spec.settings.fleet.external:
        # An owner of devices that hangs is given a time of its own before it is replaced.
        with context.pulse.waiting():
            await prewarm(context.pool.servers)
    roles = await lease_roles(stack, spec.settings, spec.seed, context, model)
    if teachers:
        await roles.trainer.load_teachers(teachers.folders, teachers.served.domains)
    shares = None
    if context.resources.share:
        shares = roles.devices
        for group in roles.groups.values():
            await group.hold(())
    fleet = await lease_fleet(stack, context, spec.settings.served, model, asked, shares)
    return roles, fleet


def _devices(context: StageContext, roles: Roles, fleet: Fleet) -> SeparateDevices:
    if not context.resources.share:
        return SeparateDevices()
    return SharedDevices(roles.groups, fleet, context.reporter.warn)


async def _resume(
    context: StageContext,
    record: RlRecord,
    loop: Loop,
    roles: Roles,
    policy: PublishedPolicy,
    devices: SeparateDevices,
    timeline: Timeline,
) -> None:
    """Continue from the newest checkpoint, if there is one: the fleet gets its weights too."""
    latest = await asyncio.to_thread(context.checkpoints.latest)
    if latest is not None:
        _, folder = latest
        record.restore(folder)
        loop.buffer.restore(folder)
        await asyncio.to_thread(loop.sampler.restore, folder)
        timeline.restore(folder)
        async with devices.keeping():
            await roles.load(folder)
        await policy.go_on(record.version)
    await loop.takes.recover(record.step + 1)
    takes = loop.takes.from_step(record.step + 1)
    await loop.producer.recover(loop.sampler.first_open, takes)


async def _train(
    spec: RlSpec,
    context: StageContext,
    record: RlRecord,
    loop: Loop,
    saving: Saving,
    roles: Roles,
    fleet: Fleet,
    evaluation: EvaluationSchedule,
    devices: SeparateDevices,
    timeline: Timeline,
) -> None:
    """Run the loop from where the record stands to the end of the stage."""
    settings, in_flight = spec.settings, fleet.client.in_flight
    in_flight.since_last()
    caches = CacheUse(fleet)

    def depths() -> dict[str, float]:
        return {
            "tickets rolling": timeline.under_way(TICKETS),
            "groups waiting": len(loop.buffer),
            "turns in flight": in_flight.turns,
        }

    async def after_step(result: StepResult) -> bool:
        for group in result.dropped:
            mark(TAKES, f"drops ticket {group.ticket}", step=result.step)
        of_devices = dict(devices.since_last()) | caches.since_last()
        record.observe(result, in_flight.since_last(), of_devices)
        if isinstance(phases := loop.producer.source, PhasedTickets):
            score = record.held_out_score
            if score is not None and score[0] < settings.critic_only_steps:
                score = None  # of the policy that the stage began with, as often as it is taken
            moved = phases.after_step(record.step, score, is_solved=record.solved)
            record.in_phase(phases.phase, moved)
        over = record.solved or record.step == settings.steps
        if not devices.are_shared:
            await evaluation.begin_if_due(is_over=over)
        stopping = context.stop.requested and not over
        if stopping or (record.step % settings.checkpoint_every == 0 and not over):
            snapshot = partial(_snapshot, record, loop, roles, devices, timeline)
            await saving.begin(record.step, record.score, snapshot, loop.sampler.first_open)
        if stopping:
            raise Stopped(
                f"stopped after step {record.step}; the stage continues from this checkpoint"
            )
        if devices.are_shared:  # the next to use them are the servers
            await saving.wait_for_snapshot()
            await devices.generate()
            await evaluation.begin_if_due(is_over=over)
        if not over:
            await set_temperature()
        return over

    async def set_temperature() -> None:
        if (control := record.temperatures) is None:
            return
        with context.pulse.waiting():
            said = await control.before_next_step(loop, record.step)
        record.note({"temperature": control.temperature}, said)

    async def before_update() -> None:
        if devices.are_shared:
            await evaluation.finish()
        await saving.wait_for_snapshot()

    await devices.generate()
    await evaluation.begin_if_due()
    await set_temperature()
    async with counting(timeline, depths), caches.watched():
        await loop.run(
            first=record.step + 1,
            last=settings.steps,
            after_step=after_step,
            before_update=before_update,
        )


def _snapshot(
    record: RlRecord,
    loop: Loop,
    roles: Roles,
    devices: SeparateDevices,
    timeline: Timeline,
    folder: Path,
) -> Coroutine[Any, Any, Written]:
    """Record, groups, tickets and times as they are now; the ranks stay as they are until the next
    update."""
    later = [record.save(folder), timeline.save(folder), loop.sampler.save(folder)]
    loop.buffer.save(folder)

    async def copy_roles() -> Written:
        async with devices.keeping():
            return await roles.begin_save(folder)

    return _both(copy_roles(), asyncio.to_thread(_all, later))


def _all(work: Sequence[Callable[[], None]]) -> None:
    for each in work:
        each()


async def _both(copied: Coroutine[Any, Any, Written], rest: Coroutine[Any, Any, object]) -> Written:
    return (await run_both(copied, rest))[0]


def is_nothing_mined(context: StageContext) -> bool:
    """Return whether the stage is given the problems of a `mine`, and there are none."""
    return MINED in context.inputs and not read_admitted(context.inputs[MINED])


def pass_on(context: StageContext) -> dict[str, float]:
    """Copy the model, without what another stage did to make it, and say so."""
    for file in sorted(context.inputs["model"].iterdir()):
        if file.is_file() and file.name not in (ROLLOUTS_FILE, TAKES_FILE):
            shutil.copyfile(file, context.out / file.name)
    context.reporter.keep_warning(
        StageWarning(
            what="it trained nothing: its model is the one before it",
            cause="the `mine` before it found no problem whose rollouts show a pathology",
            advice="leave both stages out, or keep more rollouts before `mine`",
        )
    )
    return {"steps": 0.0}
