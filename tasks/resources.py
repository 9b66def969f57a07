"""What the stages that generate share: their engines, their chat format, their domains."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from engines.sglang.spec import FleetSpec
from infra.errors import InputError
from tasks.domain import Domain, OpenDomain, open_domain
from tasks.stage import StageContext, Stopped

if TYPE_CHECKING:
    from engines.chat import Chat
    from engines.megatron.critic_group import CriticGroup
    from engines.megatron.group import TrainerGroup
    from engines.megatron.rank import TrainerJob
    from engines.rollout.journal import RolloutJournal
    from engines.rollout.seams import LiveDomain
    from engines.sglang.fleet import Fleet

NOTE_SECONDS = 1.0
"""most work of a sweep that a kill repeats"""
STOP_POLL_SECONDS = 0.25

A = TypeVar("A")


async def lease_fleet(
    stack: AsyncExitStack, context: StageContext, spec: FleetSpec, model: Path
) -> Fleet:
    """Lease the stage's servers with `model`'s weights (version 0); released with the stack."""
    from engines.sglang.fleet import Fleet

    with context.pulse.waiting():
        fleet = await Fleet.lease(
            spec,
            model,
            servers=context.resources.servers,
            tp=context.resources.tp_per_server,
            pool_servers=context.pool.servers,
            holder=context.holder,
        )
    stack.push_async_callback(fleet.release)
    return fleet


async def lease_trainer(
    stack: AsyncExitStack, context: StageContext, job: TrainerJob
) -> TrainerGroup:
    """Lease the stage's trainer ranks, loaded; released with the stack."""
    from engines.megatron.group import TrainerGroup

    with context.pulse.waiting():
        trainer = await TrainerGroup.lease(
            job, pool_ranks=context.pool.trainer_ranks, holder=context.holder
        )
    stack.push_async_callback(trainer.release)
    return trainer


async def lease_with_critic(
    stack: AsyncExitStack, context: StageContext, policy: TrainerJob, critic: TrainerJob
) -> tuple[TrainerGroup, CriticGroup]:
    """Lease the ranks of both roles at once, loaded; released with the stack."""
    from engines.megatron import critic_group

    with context.pulse.waiting():
        groups = await critic_group.lease_with_critic(
            policy, critic, pool_ranks=context.pool.trainer_ranks, holder=context.holder
        )
    stack.push_async_callback(groups[0].release)
    return groups


def keep_rollouts(stack: AsyncExitStack, context: StageContext) -> RolloutJournal:
    """Where a sweep's rollouts are durable as they finish; the last ones when the stack ends."""
    from engines.rollout.journal import RolloutJournal

    journal = RolloutJournal(context.checkpoints, every_s=NOTE_SECONDS)
    stack.push_async_callback(journal.flush)
    return journal


async def unless_stopped(context: StageContext, work: Coroutine[Any, Any, A]) -> A:
    """Await `work`, all of whose results are durable at once; cancel it when a stop is asked for.

    Raises Stopped.
    """
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            if context.stop.requested:
                raise Stopped("stopped; what it finished continues the stage")
            await asyncio.wait({task}, timeout=STOP_POLL_SECONDS)
        return task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def open_parts(
    stack: AsyncExitStack, model: Path, domains: Sequence[Domain]
) -> tuple[Chat, list[LiveDomain]]:
    """The model's chat format and the live domains, built in a thread: their imports take time.

    The processes of the user's own parts are started, and end with the stack. Raises InputError.
    """
    chat, opened = await asyncio.to_thread(_open_parts, model, domains)
    processes = [process for domain in opened for process in domain.processes]
    for process in processes:
        stack.push_async_callback(process.close)
    await asyncio.gather(*[process.start() for process in processes])
    return chat, [domain.live for domain in opened]


def _open_parts(model: Path, domains: Sequence[Domain]) -> tuple[Chat, list[OpenDomain]]:
    from engines.chat import Chat

    return Chat.load(model), [open_domain(d) for d in domains]


def require_inputs(context: StageContext, roles: Sequence[str]) -> None:
    """Raises InputError when the stage was not given an input that it needs."""
    missing = [role for role in roles if role not in context.inputs]
    if missing:
        raise InputError(
            f"stage {context.name!r} has no input {', '.join(missing)}; "
            f"it was given {', '.join(sorted(context.inputs)) or 'none'}"
        )


def context_length(spec: FleetSpec, model: Path) -> int:
    """Longest sequence the engine takes: the spec's, else the model's own. Raises InputError."""
    if spec.context_length is not None:
        return spec.context_length
    config: dict[str, Any] = json.loads((model / "config.json").read_text())
    length = config.get("max_position_embeddings")
    if not isinstance(length, int):
        raise InputError(
            f"{model / 'config.json'} has no max_position_embeddings; set `fleet.context_length`"
        )
    return length
