"""What a stage that samples, and trains nothing, works with."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from curricula.built_in_curricula import BUILT_IN, OF_ROWS
from engines.chat import Chat
from engines.draws import leave_out_long
from engines.rollout.drivers.driver import LiveDomain
from engines.rollout.records.journals import RolloutJournal
from engines.rollout.roller import RollsGroups
from engines.rollout.sample_only import KeptRollouts
from engines.sglang.fleet import Fleet
from engines.sglang.spec import FleetSpec
from infra.code.digest import digest_of
from infra.processes.coroutines import run_both
from tasks.admitted import only_admitted
from tasks.domain import Domain, ScoredDomain
from tasks.resources import (
    context_length,
    keep_rollouts,
    lease_fleet,
    open_parts,
    read_fitting_rows,
)
from tasks.rollout_workers.rollers import Rollers
from tasks.served.served_roles import RoleClients
from tasks.stage import StageContext, require_inputs


@dataclass(frozen=True, slots=True)
class Fit:
    """What rows have to fit so that several models are asked the same ones: their prompts, as each
    of the chats writes them, leave room for an answer in the shortest context."""

    chats: Sequence[Chat]
    longest: int

    @classmethod
    async def of(
        cls, fleet: FleetSpec, domains: Sequence[Domain | ScoredDomain], models: Sequence[Path]
    ) -> Fit | None:
        """None where no domain has rows. Raises InputError."""
        if all(d.curriculum.name in BUILT_IN.keys() - OF_ROWS for d in domains):
            return None
        loaded = [await asyncio.to_thread(Chat.load, model) for model in models]
        chats = {chat.format_checksum: chat for chat in loaded}
        return cls(list(chats.values()), min(context_length(fleet, model) for model in models))

    @property
    def digest(self) -> str:
        """Return a text that is the same only where the same rows fit."""
        return digest_of([self.longest, sorted(chat.format_checksum for chat in self.chats)])


@dataclass(frozen=True, slots=True)
class SamplingParts:
    """All of them end with the stack that they were opened on."""

    fleet: Fleet
    """serves the first model, as version 0"""
    chat: Chat
    """the first model's"""
    domains: list[LiveDomain]
    rollers: Rollers
    journal: RolloutJournal
    """of rollouts that are finished"""


async def open_sampling(
    stack: AsyncExitStack,
    context: StageContext,
    fleet_spec: FleetSpec,
    domains: Sequence[Domain | ScoredDomain],
    model: Path,
    seed: int,
    fit: Fit | None = None,
) -> SamplingParts:
    """Lease servers for `model` and for what the rewards ask, and meanwhile build the domains.
    `seed`: the stage's; `fit`: of rows; None: to `model` alone. Raises EngineError, InputError,
    StorageError, TrainingStopped."""
    roles = RoleClients(stack, domains)
    rolls_here = not context.resources.rollout_workers
    fleet, (chat, live) = await run_both(
        lease_fleet(stack, context, fleet_spec, model, roles),
        open_parts(stack, model, domains, roles, rolls_here=rolls_here),
    )
    rollers = Rollers(stack, context, fleet, fleet_spec, domains, roles, seed)
    fit = fit or Fit([chat], context_length(fleet_spec, model))
    for other in fit.chats[1:]:
        for domain in live:
            await asyncio.to_thread(leave_out_long, domain.curriculum, other, fit.longest)
    await read_fitting_rows(context, live, fit.chats[0], fit.longest)
    return SamplingParts(fleet, chat, live, rollers, keep_rollouts(stack, context))


@dataclass(frozen=True, slots=True)
class ModelSampling:
    """What a stage works with that samples with its input model alone."""

    chat: Chat
    domains: list[LiveDomain]
    """which draw admitted problems alone, where the stage was given some"""
    roller: RollsGroups
    kept: KeptRollouts


async def open_model_sampling(
    stack: AsyncExitStack,
    context: StageContext,
    fleet_spec: FleetSpec,
    domains: Sequence[Domain | ScoredDomain],
    seed: int,
) -> ModelSampling:
    """The parts for `inputs["model"]`; see `open_sampling`."""
    require_inputs(context, ["model"])
    model = context.inputs["model"]
    parts = await open_sampling(stack, context, fleet_spec, domains, model, seed)
    live = await only_admitted(context, parts.domains)
    roller = await parts.rollers.of(model, parts.chat)
    return ModelSampling(parts.chat, live, roller, await KeptRollouts.open(parts.journal, 0))
