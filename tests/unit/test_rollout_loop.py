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
        self.tokens: list[list[list[int]]] = []
        self.gated: list[bool] = []
        self.events: list[str] = []
        self.given = (None, None)

    async def rl_step(self, inputs):
        samples = inputs.samples
        self.given = (inputs.values, inputs.token_rewards)
        asked = len(self.policy.calls)
        for _ in range(self.slow):
            await asyncio.sleep(0)
        assert len(self.policy.calls) == asked, "nothing is sampled while weights are trained"
        self.trained.append([s.oldest_version for s in samples])
        self.tokens.append([s.tokens.tolist() for s in samples])
        self.gated.append(inputs.gate)
        self.events.append(f"train {samples[0].oldest_version} at {inputs.version}")
        return {"entropy": 0.5, "tokens": 10.0}

    async def agreement(self, inputs):
        samples = inputs.samples
        self.events.append(f"sampled {samples[0].oldest_version}")
        assert {s.oldest_version for s in samples} == {self.policy.version}
        return {"engine_mismatch_mean": self.policy.version / 100}

    async def token_rewards(self, inputs):
        return "token rewards"

    async def publish(self, version):
        self.policy.version = version
        self.events.append(f"publish {version}")
        return SimpleNamespace(bytes=100, seconds=0.0)


def setup(say, *, max_staleness=0, slow=0, wanted=4, oversample=1.0, version=0):
    policy = Policy(say)
    policy.version = version
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
        trainer=trainer,
        publish=lambda version: trainer.publish(version),
        algorithm=Algorithm(),
        version=version,
    )
    return made, consumer, RolloutBuffer(max_staleness=max_staleness, version=version), trainer


def informative():
    calls = iter(range(10**6))
    return lambda *_: str(next(calls) % 2)


async def run(parts, steps, stop_after=None, first=1):
    made, consumer, buffer, _ = parts
    results = []

    async def after_step(result):
        results.append(result)
        return result.step == stop_after

    await asyncio.wait_for(
        train_loop(made, consumer, buffer, first=first, last=steps, after_step=after_step), 10
    )
    return results


async def test_synchronous_training_sees_only_the_newest_weights():
    parts = setup(informative(), slow=20)
    results = await run(parts, 3)
    assert parts[3].trained == [[0] * 8, [1] * 8, [2] * 8]
    assert [r.version for r in results] == [1, 2, 3]
    assert [r.batch.version for r in results] == [0, 1, 2]


async def test_with_staleness_the_two_take_turns_in_one_order_of_events():
    parts = setup(informative(), max_staleness=2, slow=500)
    results = await run(parts, 5)
    assert parts[3].events == [
        *("sampled 0", "sampled 0", "sampled 0"),
        *("train 0 at 0", "publish 1", "sampled 1"),
        *("train 0 at 1", "publish 2", "sampled 2"),
        *("train 0 at 2", "publish 3"),
        *("train 1 at 3", "publish 4"),
        *("train 2 at 4", "publish 5"),
    ]
    assert parts[3].gated == [True, False, False, False, False], "stale logprobs may differ"
    metrics = [step_metrics(r) for r in results]
    assert [m["engine_mismatch_mean"] for m in metrics] == [0, 0, 0, 0.01, 0.02]


@pytest.mark.parametrize("k", [1, 2, 4, 16])
async def test_batches_are_0_to_k_and_then_always_k_versions_old(k):
    results = await run(setup(informative(), max_staleness=k), k + 4)
    metrics = [step_metrics(r) for r in results]
    wanted = [*range(k), k, k, k, k]
    assert [m["staleness_max"] for m in metrics] == wanted
    assert [m["staleness_mean"] for m in metrics] == wanted
    assert [r.version for r in results] == list(range(1, k + 5))


async def test_a_stage_shorter_than_its_staleness_samples_what_it_trains_on():
    parts = setup(informative(), max_staleness=8)
    assert [r.batch.version for r in await run(parts, 3)] == [0, 0, 0]
    assert len(parts[3].policy.calls) == 3 * 8


async def test_what_waits_at_a_checkpoint_is_trained_on_as_if_nothing_had_happened(tmp_path):
    """The policy that comes back could not have sampled it, and it is not asked to."""

    def say(_, sampling):
        return str(sampling.seed % 7)

    whole = setup(say, max_staleness=2, oversample=2.0)
    told = await run(whole, 7)
    cut = setup(say, max_staleness=2, oversample=2.0)
    await run(cut, 7, stop_after=3)
    cut[2].save(tmp_path)
    rest = setup(say, max_staleness=2, oversample=2.0, version=3)
    rest[2].restore(tmp_path, 3)
    assert rest[2].cursor == cut[2].cursor == told[4].batch.cursor
    rest[0].source.seek(rest[2].cursor)
    last = await run(rest, 7, first=4)
    assert rest[3].tokens == whole[3].tokens[3:]
    assert rest[3].trained == whole[3].trained[3:] == [[1] * 8, [2] * 8, [3] * 8, [4] * 8]
    assert [steady(r) for r in last] == [steady(r) for r in told[3:]]
    assert {call[1].seed for call in rest[3].policy.calls}.isdisjoint(
        call[1].seed for call in cut[3].policy.calls
    )


def steady(result):
    """Metrics of a step, less what a clock says."""
    return {
        k: v for k, v in step_metrics(result).items() if "seconds" not in k and "_per_" not in k
    }


async def test_a_batch_that_is_too_old_is_never_trained():
    made, consumer, buffer, trainer = setup(informative(), max_staleness=1)
    buffer.put(await made.produce(buffer, 1))
    buffer.trained(2)
    with pytest.raises(
        AssertionError, match="over 1 versions older than the policy, which is at 2"
    ):
        await run((made, consumer, buffer, trainer), 1)
    assert trainer.trained == []


async def test_a_skipped_update_makes_the_next_batches_less_old():
    """Four rollouts are of equal rewards, so the batch of step 2 has no group to train on."""
    calls = iter(range(10**6))
    parts = setup(lambda *_: "0" if 8 <= (n := next(calls)) < 16 else str(n % 2), max_staleness=1)
    results = await run(parts, 4)
    metrics = [step_metrics(r) for r in results]
    assert [m["update_skipped"] for m in metrics] == [0, 1, 0, 0]
    assert [r.version for r in results] == [1, 1, 2, 3]
    assert [m["staleness_max"] for m in metrics] == [0, 0, 0, 1]


async def test_surplus_is_dropped_and_counted_when_synchronous():
    results = await run(setup(informative(), oversample=2.0), 2)
    assert [r.batch.dropped for r in results] == [4, 4]
    assert [r.batch.reused for r in results] == [0, 0]


async def test_surplus_is_reused_by_steps_of_the_same_weights_only():
    """Of the eight informative groups of step 1, four are left to step 2, and none to step 4."""
    parts = setup(informative(), max_staleness=2, oversample=2.0)
    results = await run(parts, 5)
    assert [r.batch.reused for r in results] == [0, 4, 0, 0, 0]
    assert [len(r.batch.rolled) for r in results] == [8, 0, 8, 8, 8]
    assert [r.batch.dropped for r in results] == [0, 0, 0, 4, 4], "too old where they would train"
    assert [step_metrics(r)["staleness_max"] for r in results] == [0, 1, 2, 2, 2]


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

    async def publish(version):
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
        self.given = []

    async def values(self, inputs):
        return self.steps

    async def critic_step(self, inputs):
        self.given.append((inputs.values, inputs.token_rewards))
        self.steps += 1
        return {"value_loss": 0.25}


def with_critic(**written):
    made, _, buffer, trainer = setup(informative())
    critic = Critic()
    consumer = Consumer(
        trainer=trainer,
        publish=trainer.publish,
        algorithm=Algorithm(preset="ppo", **written),
        version=0,
        critic=critic,
        critic_only_steps=2,
    )
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
    assert critic.given == [(0, None), (1, None), (2, None), (3, None)]
    assert trainer.given == (3, None)


async def test_both_roles_hear_of_a_kl_in_the_reward():
    kl = {"coef": 0.1, "estimator": "k1", "place": "reward"}
    *parts, trainer, critic = with_critic(kl=kl)
    await run([*parts, trainer], 3)
    assert critic.given[-1] == trainer.given == (2, "token rewards")


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
