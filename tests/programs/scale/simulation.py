"""One simulated RL stage: the real loop over simulated servers and a simulated trainer."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import statistics
import time
from collections.abc import Generator
from dataclasses import dataclass, replace

from engines.algorithms.spec import Algorithm
from engines.rollout.background_sampler import BackgroundSampler
from engines.rollout.consumer import Consumer, StepResult
from engines.rollout.drivers.driver import Conversation, LiveDomain
from engines.rollout.loop import Loop
from engines.rollout.published_policy import PublishedPolicy
from engines.rollout.records.take_log import TakeLog
from engines.rollout.roller import Roller
from engines.rollout.round_sampler import RoundSampler
from tests.parts.loop_parts import Notes
from tests.parts.rollout_parts import producer_of
from tests.programs.scale import virtual_time
from tests.programs.scale.fleet import SimulatedClient, SimulatedFleet
from tests.programs.scale.server import ServerSpeed
from tests.programs.scale.trainer import PUBLISH_S, SimulatedTrainer
from tests.programs.scale.workload import (
    LOG_NORMAL,
    MOST_TOKENS,
    PROMPT_TOKENS,
    TOKENS_EACH,
    TOOL_TOKENS,
    Length,
    ManyTurns,
    SimulatedChat,
    SimulatedJudge,
    SimulatedProblems,
    mean_tokens,
)

GROUP_SIZE = 8
SPEED = ServerSpeed()


@dataclass(frozen=True, slots=True)
class Setup:
    """What is simulated."""

    servers: int
    staleness: int
    trainer_share: float = 1.0
    """rate of the trainer divided by that of the servers, both with the publish"""
    rollouts_a_place: float = 5.0
    """of a step, divided by the sequences that all servers together can run"""
    oversample: float = 1.0
    round_tokens: int | None = None
    """after which a step may end without a rollout; of one turn each"""
    easy_share: float = 0.0
    """of problems whose groups teach nothing"""
    length: Length = LOG_NORMAL
    """of a turn"""
    turns: int = 1
    """of a rollout"""
    tool_s: float = 0.0
    """between two turns, on average"""
    hours_to_failure: float | None = None
    """of one server, on average"""
    warm_up: int = 3
    """steps until things run evenly"""
    steps: int = 6
    """that are measured after these"""
    seed: int = 0
    speed: ServerSpeed = SPEED

    @property
    def groups_per_step(self) -> int:
        places = self.servers * self.speed.places
        return round(places * self.rollouts_a_place / GROUP_SIZE)

    @property
    def tokens_a_step(self) -> float:
        """That are trained on."""
        return self.groups_per_step * GROUP_SIZE * self.tokens_a_rollout

    @property
    def tokens_a_rollout(self) -> float:
        return self.turns * mean_tokens(self.length)

    @property
    def prompt_tokens(self) -> float:
        """Before a turn, on average: servers have none of them cached."""
        before = (self.turns - 1) / 2 * (mean_tokens(self.length) + TOOL_TOKENS)
        return PROMPT_TOKENS + before

    @property
    def sampling_s(self) -> float:
        """Of a step's tokens and of those of groups that teach nothing, where all places are taken
        all the time, and of the pause for a publish."""
        rate = self.servers * self.speed.tokens_per_s(mean_tokens(self.length), self.prompt_tokens)
        return self.tokens_a_step / (1 - self.easy_share) / rate + PUBLISH_S

    @property
    def training_s(self) -> float:
        """Of a step, with its publish."""
        return self.sampling_s / self.trainer_share

    @property
    def bound(self) -> float:
        """Tokens a second that no schedule can surpass."""
        return self.tokens_a_step / max(self.sampling_s, self.training_s)


@dataclass(frozen=True, slots=True)
class Measured:
    """Of the steps after the warm-up."""

    tokens_per_s: float
    """trained on, or more waiting at the end than at the beginning"""
    step_s: float
    trainer_idle: float
    """share of its time"""
    places_taken: float
    """share of all servers' places, over time"""
    used: float
    """tokens trained on, divided by those that servers wrote"""
    staleness: float
    """mean over samples"""
    lost_servers: int
    rollouts: int
    """started in the whole simulation"""
    cpu_s: float
    """that the whole simulation took"""


def simulate(setup: Setup) -> Measured:
    """Deterministic: it depends on nothing but `setup`, apart from `cpu_s`."""
    with _no_garbage_collection():
        return virtual_time.run(_Stage.run(setup))


@dataclass(frozen=True, slots=True)
class _Mark:
    """Where the stage stands after a step."""

    at: float
    busy_s: float
    written: float
    waiting: int
    """groups"""
    idle_s: float
    """of the trainer, in this step"""
    staleness: float


class _Stage:
    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.fleet = SimulatedFleet(setup.servers, setup.speed)
        self.trainer = SimulatedTrainer(
            setup.tokens_a_step / (setup.training_s - PUBLISH_S), self.fleet
        )
        self.policy = PublishedPolicy(self.trainer, self.fleet, 0)
        in_pieces = setup.round_tokens is not None
        self.client = SimulatedClient(self.fleet, setup.length, in_pieces=in_pieces)
        self.client.on_trouble = self.policy.repair
        self.marks: list[_Mark] = []

    @staticmethod
    async def run(setup: Setup) -> Measured:
        began = time.process_time()
        stage = _Stage(setup)
        failures = asyncio.create_task(stage.lose_servers())
        # more steps than are run: a stage's last ones admit fewer rollouts
        last = setup.warm_up + setup.steps + setup.staleness + 1
        loop = stage.loop(last)
        await loop.run(first=1, last=last, after_step=stage.after_step)
        failures.cancel()
        await stage.client.close()
        await stage.policy.close()
        rollouts = loop.producer.source.next * GROUP_SIZE
        return stage.measured(rollouts, time.process_time() - began)

    async def lose_servers(self) -> None:
        if self.setup.hours_to_failure is not None:
            await self.fleet.lose_servers(self.setup.hours_to_failure, self.setup.seed)

    def loop(self, steps: int) -> Loop:
        setup = self.setup
        judge = SimulatedJudge(setup.easy_share)
        domain = simulated_domain(setup.turns, setup.tool_s, judge)
        producer, buffer = producer_of(
            Roller(
                generate=self.client.generate, chat=SimulatedChat(),
                context_length=1 << 20, seed=setup.seed,
            ),
            [domain],
            groups_per_step=setup.groups_per_step, group_size=GROUP_SIZE,
            oversample=setup.oversample, waves=2,
            max_staleness=setup.staleness, policy=self.policy,
        )  # fmt: skip
        consumer = Consumer(
            trainer=self.trainer,
            policy=self.policy,
            algorithm=Algorithm(),
            groups_per_step=setup.groups_per_step,
        )
        if setup.round_tokens is not None:
            sampler = RoundSampler(producer, buffer, self.policy, setup.round_tokens // TOKENS_EACH)
        else:
            sampler = BackgroundSampler(producer, buffer, self.policy, steps)
        return Loop(producer, buffer, TakeLog(Notes()), consumer, self.policy, sampler)

    async def after_step(self, result: StepResult) -> bool:
        servers = self.fleet.servers.values()
        self.marks.append(
            _Mark(
                asyncio.get_running_loop().time(),
                sum(server.busy_s for server in servers),
                sum(server.written for server in servers),
                result.waiting,
                result.sampled.waited_seconds,
                statistics.mean(result.staleness),
            )
        )
        return result.step == self.setup.warm_up + self.setup.steps

    def measured(self, rollouts: int, cpu_s: float) -> Measured:
        before = self.setup.warm_up
        first, last, steps = self.marks[before - 1], self.marks[-1], self.marks[before:]
        seconds = last.at - first.at
        of_a_group = GROUP_SIZE * self.setup.tokens_a_rollout
        saved = (last.waiting - first.waiting) * of_a_group
        tokens = sum(self.trainer.trained[before:]) + saved
        places = self.setup.servers * self.setup.speed.places
        return Measured(
            tokens_per_s=tokens / seconds,
            step_s=seconds / len(steps),
            trainer_idle=sum(step.idle_s for step in steps) / seconds,
            places_taken=(last.busy_s - first.busy_s) / (places * seconds),
            used=tokens / (last.written - first.written),
            staleness=statistics.mean(step.staleness for step in steps),
            lost_servers=self.fleet.lost,
            rollouts=rollouts,
            cpu_s=cpu_s,
        )


def simulated_domain(turns: int, tool_s: float, judge: SimulatedJudge) -> LiveDomain:
    """Whose rollouts have so many turns."""
    driver = Conversation(None) if turns == 1 else ManyTurns(turns, tool_s)
    most = turns * MOST_TOKENS // TOKENS_EACH
    return LiveDomain("simulated", SimulatedProblems(), judge, driver, most)


def seconds_of_a_group(turns: int, max_batch: int, seed: int) -> float:
    """Until a group of 16 is rolled out, whose tools answer at once, on a server with a place for
    each; `max_batch`: turns in a request, 1 for independent ones."""

    async def roll() -> float:
        fleet = SimulatedFleet(1, replace(SPEED, places=16))
        async with SimulatedClient(fleet, LOG_NORMAL, max_batch) as client:
            roller = Roller(
                generate=client.generate, chat=SimulatedChat(), context_length=1 << 20, seed=seed
            )
            (problem,) = SimulatedProblems().problems("rl", 1, seed)
            domain = simulated_domain(turns, 0.0, SimulatedJudge())
            await roller.roll_group(
                domain, problem, 16, temperature=1.0, group_id=f"{seed}", seed_name=f"{seed}"
            )
        return asyncio.get_running_loop().time()

    return virtual_time.run(roll())


@contextlib.contextmanager
def _no_garbage_collection() -> Generator[None]:
    """Looking through millions of objects again and again would take most of the time."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.collect()
