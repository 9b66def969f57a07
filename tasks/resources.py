"""What stages share: their trainer's ranks and, where they generate, their servers, their chat
format, their domains."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from engines.families.common.model_config import read_config, usable_positions
from engines.sglang.spec import FleetSpec
from infra.errors import InputError
from tasks.domain import Domain, ScoredDomain
from tasks.stage import StageContext, Stopped, require_inputs

if TYPE_CHECKING:
    from engines.chat import Chat
    from engines.megatron.ranks.rank import TrainerJob
    from engines.megatron.ranks.trainer_group import TrainerGroup
    from engines.rollout.drivers.driver import LiveDomain
    from engines.rollout.records.journals import RolloutJournal
    from engines.sglang.fleet import Fleet
    from engines.sglang.servers.server_units import TrainerDevices
    from engines.types import Problem
    from infra.store.manifest import StageWarning
    from tasks.live_domain import OpenDomain
    from tasks.served.served_roles import RoleClients


NOTE_SECONDS = 1.0
"""most work of a sweep that a kill repeats"""
STOP_POLL_SECONDS = 0.25

A = TypeVar("A")


async def lease_fleet(
    stack: AsyncExitStack,
    context: StageContext,
    spec: FleetSpec,
    model: Path,
    roles: RoleClients | None = None,
    shares: TrainerDevices | None = None,
) -> Fleet:
    """Lease the stage's servers with `model`'s weights (version 0), on `shares` if they take turns
    with a trainer, and beside them those of the models that its rewards ask, which `roles` are
    connected with; released with the stack."""
    from engines.sglang.fleet import Fleet, WantedFleet
    from engines.sglang.servers.server_units import ServerTerms

    resources = context.resources
    terms = ServerTerms(spec, model, resources.tp_per_server, shares=shares)
    named = list(roles.roles.values()) if roles is not None else []
    require_inputs(context, [role.input for role in named])
    wanted = [WantedFleet(terms, resources.servers)]
    for role in named:
        own = resources.of_role(role.name)
        held = context.inputs[role.input]
        terms = ServerTerms(role.server_fleet, held, own.tp_per_server, device=own.device)
        wanted.append(WantedFleet(terms, own.servers))
    with context.pulse.waiting():
        fleets = await Fleet.lease_all(wanted, context.pool.servers, context.holder)
    for fleet in fleets:
        stack.push_async_callback(fleet.release)
    if roles is not None:
        await _connect(roles, context, dict(zip(roles.roles, fleets[1:], strict=True)))
    gc.freeze()  # what is imported stays: a look at all of it would hold every rollout up
    return fleets[0]


async def _connect(roles: RoleClients, context: StageContext, fleets: Mapping[str, Fleet]) -> None:
    """Raises InputError."""
    from engines.chat.chat_folder import chat_files
    from engines.sglang.roles.role_client import MOST_ASKED, RoleAddress

    addresses: dict[str, RoleAddress] = {}
    for name, fleet in fleets.items():
        role = roles.roles[name]
        model = context.inputs[role.input]
        most = role.fleet.max_turns_per_server or MOST_ASKED
        addresses[name] = RoleAddress(
            router_url=fleet.router_url,
            max_batch=fleet.client.max_batch,
            most_asked=most * len(fleet.server_urls),
            chat_files=chat_files(model),
            context_length=context_length(role.fleet, model),
        )
        fleet.on_lost(roles.of(name).refuse)
    await roles.connect(addresses)


def keep_rollouts(stack: AsyncExitStack, context: StageContext) -> RolloutJournal:
    """Open the journal where a sweep's rollouts are durable as they finish; the last ones when the
    stack ends."""
    from engines.rollout.records.journals import RolloutJournal

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
                raise Stopped("stopped; the stage continues with the work that is finished")
            await asyncio.wait({task}, timeout=STOP_POLL_SECONDS)
        return task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def open_parts(
    stack: AsyncExitStack,
    model: Path,
    domains: Sequence[Domain | ScoredDomain],
    roles: RoleClients,
    *,
    rolls_here: bool = True,
    judges_groups: bool = True,
    sharing: int = 1,
) -> tuple[Chat, list[LiveDomain]]:
    """The model's chat format and the live domains, built in a thread: their imports take time.
    `roles` are what their rewards ask; `sharing`: processes that have these rewards' bounds
    together.

    Where this process rolls out, the processes of the user's own parts are started, and where it
    judges groups those of such rewards; they end with the stack. Raises InputError.
    """
    chat, opened = await asyncio.to_thread(_open_parts, model, domains, roles, sharing)
    for reward in (reward for domain in opened for reward in domain.connected):
        stack.push_async_callback(reward.close)
    processes = [process for domain in opened for process in domain.processes if rolls_here]
    if judges_groups:
        processes += [process for domain in opened for process in domain.group_processes]
    for process in processes:
        stack.push_async_callback(process.close)
    await asyncio.gather(*[process.start() for process in processes])
    return chat, [domain.live for domain in opened]


def _open_parts(
    model: Path, domains: Sequence[Domain | ScoredDomain], roles: RoleClients, sharing: int
) -> tuple[Chat, list[OpenDomain]]:
    from engines.chat import Chat
    from tasks.live_domain import open_domain

    return Chat.load(model), [open_domain(d, roles, sharing) for d in domains]


def context_length(spec: FleetSpec, model: Path) -> int:
    """Longest sequence the engine takes: the spec's, else the model's own. Raises InputError."""
    if spec.context_length is not None:
        return spec.context_length
    length = usable_positions(read_config(model))
    if length is None:
        raise InputError(
            f"{model / 'config.json'} has no max_position_embeddings; set `fleet.context_length`"
        )
    return length


@runtime_checkable
class _Warns(Protocol):
    @property
    def warnings(self) -> Iterable[StageWarning]:
        """Return what a person must know of the rows before they trust what is made of them."""
        ...


async def read_fitting_rows(
    context: StageContext, domains: Sequence[LiveDomain], chat: Chat, longest: int
) -> None:
    """Read rows as `read_rows`, without prompts that leave no room for an answer in the `longest`
    sequence: how many there are is known with the model."""
    from engines.draws import leave_out_long

    for domain in domains:
        await asyncio.to_thread(leave_out_long, domain.curriculum, chat, longest)
    await read_rows(context, domains)


async def read_rows(context: StageContext, domains: Sequence[LiveDomain]) -> None:
    """Have the user's own files read, in a thread: they may be large. Which rows are no problems is
    said in the stage's log; that they are many is kept with its artifact. Raises InputError,
    StorageError, and TrainingStopped for too many bad rows."""
    from engines.types import RowCurriculum

    for domain in domains:
        if isinstance(rows := domain.curriculum, RowCurriculum):
            for line in await asyncio.to_thread(lambda rows=rows: list(rows.left_out)):
                context.reporter.warn(f"{domain.name}: {line}")
            for warning in rows.warnings if isinstance(rows, _Warns) else ():
                what = f"{domain.name}: {warning.what}"
                context.reporter.keep_warning(warning.model_copy(update={"what": what}))


def once_each(context: StageContext, name: str, drawn: Sequence[Problem]) -> list[Problem]:
    """The problems without those that came before under another id, with a warning that says how
    many there are; `name`: what they were drawn of."""
    from engines.draws import without_repeats
    from infra.store.manifest import StageWarning

    problems = without_repeats(drawn)
    if len(problems) < len(drawn):
        context.reporter.keep_warning(
            StageWarning(
                what=f"{name}: {len(problems)} different problems were tried, not {len(drawn)}",
                cause="the curriculum begins again after its last problem, and none is tried twice",
                advice="ask for fewer, or add problems",
                figures={"tried": len(problems), "asked": len(drawn)},
            )
        )
    return problems


async def lease_trainer(
    stack: AsyncExitStack, context: StageContext, job: TrainerJob, *, shares: bool = False
) -> TrainerGroup:
    """Lease the stage's trainer ranks, loaded; released with the stack. `shares`: the stage's
    servers come to the same devices."""
    from engines.megatron.ranks.trainer_group import TrainerGroup

    with context.pulse.waiting():
        trainer = await TrainerGroup.lease(
            job,
            pool_ranks=context.pool.trainer_ranks,
            holder=context.holder,
            shares=shares,
        )
    stack.push_async_callback(trainer.release)
    return trainer
