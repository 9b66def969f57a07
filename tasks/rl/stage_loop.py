"""The parts of an RL stage's loop, as its settings name them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack

from engines.rollout.background_sampler import BackgroundSampler
from engines.rollout.buffers import GroupBuffer
from engines.rollout.buffers import build as build_buffer
from engines.rollout.consumer import BeforePublish
from engines.rollout.drivers.driver import LiveDomain
from engines.rollout.filters import AskFilter, ProcessFilter, in_process
from engines.rollout.filters import build as build_filter
from engines.rollout.loop import Loop
from engines.rollout.producer import Producer
from engines.rollout.protocols import FILTERS, PolicyVersion
from engines.rollout.published_policy import PublishedPolicy
from engines.rollout.records.journals import Notes, RolloutJournal, TurnJournal
from engines.rollout.records.take_log import TakeLog, TrainedRollouts
from engines.rollout.roller import RollsGroups
from engines.rollout.round_sampler import RoundSampler
from engines.rollout.tickets import Admission, TicketSource
from engines.rollout.tickets import build as build_source
from tasks.rl.spec import RlSettings, RlSpec
from tasks.rl.trained_roles import Roles, consumer_of
from tasks.stage import StageContext


def loop_of(
    spec: RlSpec,
    context: StageContext,
    source: TicketSource,
    roller: RollsGroups,
    roles: Roles,
    policy: PublishedPolicy,
    group_filter: AskFilter,
    before_publish: BeforePublish,
) -> Loop:
    """The parts of the stage's loop, as at its beginning."""
    settings = spec.settings
    buffer = _buffer_of(spec, policy)
    producer = Producer(
        source=source,
        admission=Admission(
            groups_per_step=settings.problems_per_step,
            oversample=settings.started_beyond,
            waves=1 + settings.refill_rounds,
            max_staleness=settings.max_staleness,
        ),
        roller=roller,
        buffer=buffer,
        policy=policy,
        group_size=settings.group_size,
        temperature=settings.algorithm.temperature,
        keep=settings.algorithm.keep,
        group_filter=group_filter,
        journal=RolloutJournal(context.checkpoints),
        turns=TurnJournal(context.checkpoints),
    )
    consumer = consumer_of(roles, settings, policy, before_publish)
    if (tokens := settings.partial_rollout_tokens) is not None:
        sampler = RoundSampler(producer, buffer, policy, tokens)
    else:
        sampler = BackgroundSampler(producer, buffer, policy, settings.steps, settings.on_stale)
    trained = TrainedRollouts(context.checkpoints) if settings.keep_rollouts else None
    takes = TakeLog(context.checkpoints)
    return Loop(producer, buffer, takes, consumer, policy, sampler, trained)


def data_source_of(spec: RlSpec, domains: Sequence[LiveDomain], notes: Notes) -> TicketSource:
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
    """A filter of the user's own gets a process, which ends with the stack. Raises
    InputError.
    """
    named, needs_spread = settings.group_filter, "spread" in settings.algorithm.needs
    if named.name in FILTERS:
        return in_process(build_filter(named.name, named.options, needs_spread))
    apart = ProcessFilter(named.name, named.options, needs_spread, named.timeout_s)
    stack.push_async_callback(apart.process.close)
    await apart.process.start()
    return apart


def _buffer_of(spec: RlSpec, policy: PolicyVersion) -> GroupBuffer:
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
