"""From the rollout parts that a recipe names to live ones."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack

from engines.rollout.buffers import GroupBuffer
from engines.rollout.buffers import build as build_buffer
from engines.rollout.built_in_parts import FILTERS
from engines.rollout.drivers.driver import LiveDomain
from engines.rollout.filters import AskFilter, ProcessFilter, in_process
from engines.rollout.filters import build as build_filter
from engines.rollout.protocols import PolicyVersion
from engines.rollout.records.journals import Notes
from engines.rollout.tickets import TicketSource
from engines.rollout.tickets import build as build_source
from tasks.rl.spec import RlSettings, RlSpec


def data_source(spec: RlSpec, domains: Sequence[LiveDomain], notes: Notes) -> TicketSource:
    """Raises InputError."""
    named = spec.settings.data_source
    return build_source(
        named.name,
        named.options,
        domains,
        split="rl",
        seed=spec.seed,
        start=spec.start,
        limit=spec.settings.most_problems,
        is_beside_training=spec.samples_beside_training,
        notes=notes,
    )


async def open_filter(stack: AsyncExitStack, settings: RlSettings) -> AskFilter:
    """A filter of the user's own gets a process, which ends with the stack. Raises InputError."""
    named, needs_spread = settings.group_filter, "spread" in settings.algorithm.needs
    if named.name in FILTERS:
        return in_process(build_filter(named.name, named.options, needs_spread))
    apart = ProcessFilter(named.name, named.options, needs_spread, named.timeout_s)
    stack.push_async_callback(apart.process.close)
    await apart.process.start()
    return apart


def buffer(spec: RlSpec, policy: PolicyVersion) -> GroupBuffer:
    """Raises InputError."""
    settings = spec.settings
    return build_buffer(
        settings.buffer.name,
        settings.buffer.options,
        groups_per_step=settings.problems_per_step,
        max_staleness=settings.max_staleness,
        policy=policy,
        seed=spec.seed,
    )
