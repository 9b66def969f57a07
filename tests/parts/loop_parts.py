"""A loop over the parts of `rollout_parts`, with a trainer that records what it is given."""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from contextlib import asynccontextmanager

from engines.algorithms.spec import Algorithm
from engines.rollout.background_sampler import BackgroundSampler
from engines.rollout.consumer import Consumer
from engines.rollout.loop import Loop
from engines.rollout.records.take_log import Take, TakeLog, TrainedRollouts
from engines.rollout.round_sampler import RoundSampler
from engines.step_inputs import TrainedStep
from engines.weights.transport import PublishReport
from tests.parts.rollout_parts import Policy, domain, producer_of, roller


def by_seed(_, sampling):
    """The same answer whenever it is asked."""
    return str(sampling.seed % 1009)


class Trainer:
    """Records what it is trained on; publishing changes the policy's version."""

    def __init__(self, policy: Policy, slow: int = 0) -> None:
        self.policy = policy
        self.slow = slow
        self.answers_meanwhile = False
        """whether the policy answers only during updates"""
        self.trained: list[list[int]] = []
        self.tokens: list[list[list[int]]] = []
        self.events: list[str] = []
        self.answered_meanwhile: list[int] = []
        """turns that ended during each update"""
        self.given = (None, None)

    async def rl_step(self, inputs):
        samples = inputs.samples
        self.given = (inputs.values, inputs.token_rewards)
        answered = self.policy.answered
        if self.answers_meanwhile:
            self.policy.may_answer.set()
        for _ in range(self.slow):
            await asyncio.sleep(0)
        if self.answers_meanwhile:
            self.policy.may_answer.clear()
        self.answered_meanwhile.append(self.policy.answered - answered)
        self.trained.append([s.weight_versions.oldest for s in samples])
        self.tokens.append([s.tokens.tolist() for s in samples])
        self.events.append(f"train {samples[0].weight_versions.oldest} at {inputs.version}")
        return TrainedStep({"entropy": 0.5, "tokens": 10.0})

    async def token_rewards(self, inputs):
        return "token rewards"

    @property
    def version(self):
        return self.policy.version

    @asynccontextmanager
    async def changing(self):
        yield

    async def publish_next(self):
        self.policy.version += 1
        self.events.append(f"publish {self.version}")
        return PublishReport(self.version, "shared memory", 100, 1, seconds=0.0)


class Notes:
    """Keeps notes in memory."""

    def __init__(self):
        self.kept = defaultdict(list)

    def note(self, kind, number, data):
        self.kept[kind].append((number, data))

    def notes(self, kind, first, last=None):
        end = math.inf if last is None else last
        return [data for n, data in self.kept[kind] if first <= n <= end]


async def at_once():
    """Before a publish."""


class Parts:
    """A loop with its trainer; the trainer's policy is the one that answers."""

    def __init__(
        self, say, *, max_staleness=0, slow=0, wanted=4, oversample=1.0, version=0, notes=None,
        critic=None, critic_only_steps=0, algorithm=None, on_stale="drop",
        delay=lambda _: 1, waves=1, journal=None, keeps=False, domains=None,
        before_publish=at_once, round_tokens=None, **more,
    ):  # fmt: skip
        self.policy = Policy(say, delay)
        self.policy.version = version
        self.trainer = Trainer(self.policy, slow)
        self.notes = notes or Notes()
        self.producer, self.buffer = producer_of(
            roller(self.policy), domains or [domain("d", float)], groups_per_step=wanted,
            group_size=2, oversample=oversample, max_staleness=max_staleness, waves=waves,
            policy=self.trainer, journal=journal, **more,
        )  # fmt: skip
        consumer = Consumer(
            trainer=self.trainer,
            policy=self.trainer,
            algorithm=algorithm or Algorithm(),
            groups_per_step=wanted,
            critic=critic,
            critic_only_steps=critic_only_steps,
            before_publish=before_publish,
        )
        self.takes = TakeLog(self.notes)
        if round_tokens is None:
            self.sampler = BackgroundSampler(
                self.producer, self.buffer, self.trainer, 0, on_stale=on_stale
            )
        else:
            self.sampler = RoundSampler(self.producer, self.buffer, self.trainer, round_tokens)
        self.loop = Loop(
            self.producer, self.buffer, self.takes, consumer, self.trainer, self.sampler,
            TrainedRollouts(self.notes) if keeps else None,
        )  # fmt: skip

    async def takes_written(self, tickets):
        """As an earlier attempt wrote the take of step 1."""
        await TakeLog(self.notes).write(Take(1, 0, tuple(tickets)))

    def answer_only_during_updates(self, free_calls):
        """Except to the first turns."""
        self.policy.free_calls = free_calls
        self.policy.may_answer.clear()
        self.trainer.answers_meanwhile = True

    async def run(self, steps, stop_after=None, first=1, after_each=at_once, **more):
        results = []

        async def after_step(result):
            results.append(result)
            await after_each()
            return result.step == stop_after

        if isinstance(self.sampler, BackgroundSampler):
            self.sampler.steps = steps
        run = self.loop.run(first=first, last=steps, after_step=after_step, **more)
        await asyncio.wait_for(run, 10)
        return results


def informative():
    calls = iter(range(10**6))
    return lambda *_: str(next(calls) % 2)


async def until_killed(parts, save, last, folder):
    """Its results up to the step `last`, in the middle of a stage of 8, and the policy's version
    at the checkpoint of the step `save`."""
    results, versions = [], []

    async def after_step(result):
        results.append(result)
        if result.step == save:
            parts.buffer.save(folder)
            parts.sampler.save(folder)()
            versions.append(parts.trainer.version)
        return result.step == last

    if isinstance(parts.sampler, BackgroundSampler):
        parts.sampler.steps = 8
    await parts.loop.run(first=1, last=8, after_step=after_step)
    await parts.producer.flush()
    return results, versions[0]


async def resumed(parts, save, last, folder):
    """Its results from the checkpoint of the step `save` to the step `last`."""
    parts.buffer.restore(folder)
    parts.sampler.restore(folder)
    await parts.takes.recover(save + 1)
    await parts.producer.recover(parts.sampler.first_open, parts.takes.from_step(save + 1))
    return await parts.run(last, first=save + 1)
