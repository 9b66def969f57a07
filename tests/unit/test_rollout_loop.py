"""Producer and consumer over the buffer: staleness, versions, skipped updates, errors."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from engines.algorithms.spec import Algorithm
from engines.rollout.buffer import RolloutBuffer
from engines.rollout.consumer import Consumer
from engines.rollout.loop import train_loop
from engines.rollout.metrics import step_metrics
from engines.rollout.producer import Producer
from engines.rollout.source import ProblemSource
from infra.errors import EngineError
from tests.rollout_parts import Policy, domain, roller

pytestmark = pytest.mark.unit


class Trainer:
    """Records what it is trained on; publishing changes the policy's version."""

    def __init__(self, policy: Policy, slow: int = 0) -> None:
        self.policy = policy
        self.slow = slow
        self.trained: list[list[int]] = []
        self.heard = (None, None)

    async def rl_step(self, samples, algorithm, gate, version, values=None, token_rewards=None):
        self.heard = (values, token_rewards)
        for _ in range(self.slow):
            await asyncio.sleep(0)
        self.trained.append([s.oldest_version for s in samples])
        return {"entropy": 0.5, "tokens": 10.0}

    async def token_rewards(self, samples, algorithm):
        return "token rewards"

    async def publish(self, endpoints, version):
        self.policy.version = version
        return SimpleNamespace(bytes=100, seconds=0.0)


def setup(say, *, max_staleness=0, slow=0, wanted=4, oversample=1.0):
    policy = Policy(say)
    trainer = Trainer(policy, slow)
    made = Producer(
        roller=roller(policy),
        source=ProblemSource([domain("d", float)], split="rl", seed=0),
        groups_per_step=wanted,
        group_size=2,
        oversample=oversample,
        rounds=1,
        temperature=1.0,
    )
    consumer = Consumer(
        trainer=trainer, endpoints=["http://server"], algorithm=Algorithm(), version=0
    )
    return made, consumer, RolloutBuffer(max_staleness=max_staleness, version=0), trainer


def informative():
    calls = iter(range(10**6))
    return lambda *_: str(next(calls) % 2)


async def run(parts, steps, stop_after=None):
    made, consumer, buffer, _ = parts
    results = []

    async def after_step(result):
        results.append(result)
        return result.step == stop_after

    await asyncio.wait_for(
        train_loop(made, consumer, buffer, first=1, last=steps, after_step=after_step), 10
    )
    return results


async def test_synchronous_training_sees_only_the_newest_weights():
    parts = setup(informative(), slow=20)
    results = await run(parts, 3)
    assert parts[3].trained == [[0] * 8, [1] * 8, [2] * 8]
    assert [r.version for r in results] == [1, 2, 3]
    assert [r.batch.version for r in results] == [0, 1, 2]


async def test_staleness_one_overlaps_and_is_never_exceeded():
    parts = setup(informative(), max_staleness=1, slow=500)
    await run(parts, 6)
    staleness = [step - min(versions) for step, versions in enumerate(parts[3].trained)]
    assert max(staleness) == 1
    assert len(staleness) == 6


async def test_surplus_is_dropped_and_counted_when_synchronous():
    results = await run(setup(informative(), oversample=2.0), 2)
    assert [r.batch.dropped for r in results] == [4, 4]
    assert [r.batch.reused for r in results] == [0, 0]


async def test_surplus_is_reused_when_staleness_allows():
    parts = setup(informative(), max_staleness=2, slow=500, oversample=2.0)
    results = await run(parts, 4)
    assert sum(r.batch.reused for r in results) > 0
    assert all(step - min(v) <= 2 for step, v in enumerate(parts[3].trained))


async def test_too_few_groups_skip_the_update_and_keep_the_version():
    parts = setup(lambda *_: "0")
    results = await run(parts, 2)
    assert parts[3].trained == []
    assert [r.version for r in results] == [0, 0]
    metrics = step_metrics(results[0])
    assert metrics["update_skipped"] == 1.0
    assert metrics["zero_variance_share"] == 1.0
    assert metrics["groups_kept"] == 0.0


async def test_the_loop_ends_early_when_it_is_told_to():
    results = await run(setup(informative()), 50, stop_after=3)
    assert [r.step for r in results] == [1, 2, 3]


async def test_an_engine_error_of_the_producer_ends_the_loop_as_it_is():
    def say(*_):
        raise EngineError("all servers are gone")

    with pytest.raises(EngineError, match="all servers are gone"):
        await run(setup(say), 3)


async def test_an_error_of_the_trainer_ends_the_loop_as_it_is():
    parts = setup(informative())

    async def publish(endpoints, version):
        raise EngineError("publish refused")

    parts[3].publish = publish
    with pytest.raises(EngineError, match="publish refused"):
        await run(parts, 3)


async def test_a_step_reports_its_numbers():
    (result,) = await run(setup(informative()), 1)
    metrics = step_metrics(result)
    assert metrics["outcome_mean"] == 0.5
    assert metrics["response_tokens_mean"] == 2.0
    assert metrics["generated_tokens"] == 16.0
    assert metrics["groups_kept"] == 4.0
    assert metrics["entropy"] == 0.5
    assert metrics["train_tokens"] == 10.0
    assert metrics["publish_bytes"] == 100.0
    assert metrics["failed_share"] == 0.0


class Critic:
    """Its values are the number of steps it has learned from."""

    def __init__(self):
        self.steps = 0
        self.heard = []

    async def values(self, samples, algorithm):
        return self.steps

    async def critic_step(self, samples, algorithm, values, token_rewards=None):
        self.heard.append((values, token_rewards))
        self.steps += 1
        return {"value_loss": 0.25}


def with_critic(**written):
    policy = Policy(informative())
    trainer, critic = Trainer(policy), Critic()
    consumer = Consumer(
        trainer=trainer,
        endpoints=["http://server"],
        algorithm=Algorithm(preset="ppo", **written),
        version=0,
        critic=critic,
        critic_only_steps=2,
    )
    made, _, buffer, _ = setup(informative())
    return made, consumer, buffer, trainer, critic


async def test_in_its_warm_up_the_critic_alone_learns_and_nothing_is_published():
    *parts, trainer, critic = with_critic()
    results = await run([*parts, trainer], 3)
    assert [r.version for r in results] == [0, 0, 1]
    assert [len(trainer.trained), critic.steps] == [1, 3]
    metrics = [step_metrics(r) for r in results]
    assert [m["update_skipped"] for m in metrics] == [1, 1, 0]
    assert [m["value_loss"] for m in metrics] == [0.25] * 3
    assert [m["publish_bytes"] for m in metrics] == [0, 0, 100]


async def test_both_roles_learn_from_the_values_before_the_step():
    *parts, trainer, critic = with_critic()
    await run([*parts, trainer], 4)
    assert critic.heard == [(0, None), (1, None), (2, None), (3, None)]
    assert trainer.heard == (3, None)


async def test_both_roles_hear_of_a_kl_in_the_reward():
    kl = {"coef": 0.1, "estimator": "k1", "place": "reward"}
    *parts, trainer, critic = with_critic(kl=kl)
    await run([*parts, trainer], 3)
    assert critic.heard[-1] == trainer.heard == (2, "token rewards")


async def test_an_error_of_the_critic_ends_the_loop_as_it_is():
    *parts, trainer, critic = with_critic()

    async def critic_step(*_):
        raise EngineError("rank 1 is gone")

    critic.critic_step = critic_step
    with pytest.raises(EngineError, match="rank 1 is gone"):
        await run([*parts, trainer], 3)


async def test_before_each_update_the_trainer_is_as_the_last_step_left_it():
    made, consumer, buffer, trainer = setup(informative())
    updates = []

    async def before_update():
        updates.append(len(trainer.trained))
        if len(updates) == 3:
            raise EngineError("the checkpoint failed")

    async def after_step(result):
        return False

    with pytest.raises(EngineError, match="the checkpoint failed"):
        await asyncio.wait_for(
            train_loop(
                made, consumer, buffer, first=1, last=5,
                after_step=after_step, before_update=before_update,
            ), 10,
        )  # fmt: skip
    assert updates == [0, 1, 2]
    assert len(trainer.trained) == 2
