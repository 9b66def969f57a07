"""The loop: staleness, versions, skipped updates, errors."""

from __future__ import annotations

import pytest

from engines.algorithms.spec import Algorithm
from engines.rollout.loop import fill
from engines.rollout.metrics import step_metrics
from infra.errors import EngineError
from tests.parts.loop_parts import Parts, informative

pytestmark = pytest.mark.unit


async def test_synchronous_training_sees_only_the_newest_weights():
    parts = Parts(informative(), slow=20)
    results = await parts.run(3)
    assert parts.trainer.trained == [[0] * 8, [1] * 8, [2] * 8]
    assert [r.version for r in results] == [1, 2, 3]
    assert [r.sampled.version for r in results] == [0, 1, 2]
    assert [r.next_ticket for r in results] == [4, 8, 12]


async def test_with_staleness_the_two_take_turns_in_one_order_of_events():
    parts = Parts(informative(), max_staleness=2, slow=500)
    results = await parts.run(5)
    assert parts.trainer.events == [
        *("sampled 0", "train 0 at 0", "publish 1"),
        *("sampled 1", "train 0 at 1", "publish 2"),
        *("sampled 2", "train 0 at 2", "publish 3"),
        *("train 1 at 3", "publish 4"),
        *("train 2 at 4", "publish 5"),
    ]
    assert parts.trainer.gated == [True, False, False, False, False], "stale logprobs may differ"
    metrics = [step_metrics(r) for r in results]
    assert [m.get("engine_mismatch_mean") for m in metrics] == [0, 0.01, 0.02, None, None]
    assert [m["groups_waiting"] for m in metrics] == [8, 8, 8, 4, 0]


async def test_a_step_that_samples_nothing_says_nothing_of_rollouts():
    (*_, last) = await Parts(informative(), max_staleness=1).run(3)
    metrics = step_metrics(last)
    assert metrics["groups_rolled"] == metrics["generated_tokens"] == 0
    assert "outcome_mean" not in metrics
    assert "failed_share" not in metrics
    assert metrics["entropy"] == 0.5


@pytest.mark.parametrize("k", [1, 2, 4, 16])
async def test_batches_are_0_to_k_and_then_always_k_versions_old(k):
    results = await Parts(informative(), max_staleness=k).run(k + 4)
    metrics = [step_metrics(r) for r in results]
    wanted = [*range(k), k, k, k, k]
    assert [m["staleness_max"] for m in metrics] == wanted
    assert [m["staleness_mean"] for m in metrics] == wanted
    assert [r.version for r in results] == list(range(1, k + 5))


async def test_a_stage_shorter_than_its_staleness_samples_what_it_trains_on():
    parts = Parts(informative(), max_staleness=8)
    assert [step_metrics(r)["staleness_max"] for r in await parts.run(3)] == [0, 1, 2]
    assert len(parts.policy.calls) == 3 * 8


async def test_what_waits_at_a_checkpoint_is_trained_on_as_if_nothing_had_happened(tmp_path):
    """The policy that comes back could not have sampled it, and it is not asked to."""

    def say(_, sampling):
        return str(sampling.seed % 7)

    whole = Parts(say, max_staleness=2, oversample=2.0)
    told = await whole.run(7)
    cut = Parts(say, max_staleness=2, oversample=2.0)
    (*_, third) = await cut.run(7, stop_after=3)
    cut.buffer.save(tmp_path)
    rest = Parts(say, max_staleness=2, oversample=2.0, version=3)
    rest.buffer.restore(tmp_path)
    rest.producer.source.next = third.next_ticket
    last = await rest.run(7, first=4)
    assert rest.trainer.tokens == whole.trainer.tokens[3:]
    assert rest.trainer.trained == whole.trainer.trained[3:]
    assert [steady(r) for r in last] == [steady(r) for r in told[3:]]
    assert {call[1].seed for call in rest.policy.calls}.isdisjoint(
        call[1].seed for call in cut.policy.calls
    )


def steady(result):
    """Metrics of a step, less what a clock says."""
    return {
        k: v for k, v in step_metrics(result).items() if "seconds" not in k and "_per_" not in k
    }


async def test_a_group_that_is_too_old_is_never_trained():
    parts = Parts(informative(), max_staleness=1)
    await fill(parts.producer, 0)
    parts.policy.version = 2
    with pytest.raises(
        AssertionError, match="over 1 versions older than the policy, which is at 2"
    ):
        parts.buffer.take()
    assert parts.buffer.drop_stale() == 4
    assert parts.buffer.take() == []


async def test_a_skipped_update_makes_the_next_groups_less_old():
    """The second wave is of equal rewards, so step 2 trains on groups of the wave after it."""
    calls = iter(range(10**6))
    parts = Parts(lambda *_: "0" if 16 <= (n := next(calls)) < 24 else str(n % 2), max_staleness=1)
    results = await parts.run(4)
    metrics = [step_metrics(r) for r in results]
    assert [m["groups_kept"] for m in metrics] == [4, 4, 4, 4]
    assert [m["groups_waiting"] for m in metrics] == [4, 0, 4, 0]
    assert [m["staleness_max"] for m in metrics] == [0, 1, 0, 1]


async def test_surplus_is_dropped_and_counted_when_synchronous():
    results = await Parts(informative(), oversample=2.0).run(2)
    assert [r.dropped for r in results] == [4, 4]
    assert [r.waiting for r in results] == [0, 0]


async def test_surplus_waits_as_long_as_it_will_be_fresh_when_it_is_trained():
    """Of the 24 groups that teach, 12 are trained by step 3, when they are 2 versions old."""
    parts = Parts(informative(), max_staleness=2, oversample=2.0)
    results = await parts.run(5)
    assert [len(r.sampled.groups) for r in results] == [24, 8, 8, 0, 0]
    assert [r.dropped for r in results] == [12, 4, 4, 0, 0]
    assert [step_metrics(r)["staleness_max"] for r in results] == [0, 1, 2, 2, 2]


async def test_too_few_groups_skip_the_update_and_keep_the_version():
    parts = Parts(lambda *_: "0")
    results = await parts.run(2)
    assert parts.trainer.trained == []
    assert [r.version for r in results] == [0, 0]
    metrics = step_metrics(results[0])
    assert metrics["update_skipped"] == 1.0
    assert metrics["zero_variance_share"] == 1.0
    assert metrics["groups_kept"] == 0.0


async def test_the_loop_ends_early_when_it_is_told_to():
    results = await Parts(informative()).run(50, stop_after=3)
    assert [r.step for r in results] == [1, 2, 3]


async def test_an_engine_error_of_the_producer_ends_the_loop_as_it_is():
    def say(*_):
        raise EngineError("all servers are gone")

    with pytest.raises(EngineError, match="all servers are gone"):
        await Parts(say).run(3)


async def test_an_error_of_the_trainer_ends_the_loop_as_it_is():
    parts = Parts(informative())

    async def publish_next():
        raise EngineError("publish refused")

    parts.trainer.publish_next = publish_next
    with pytest.raises(EngineError, match="publish refused"):
        await parts.run(3)


async def test_a_step_reports_its_numbers():
    (result,) = await Parts(informative()).run(1)
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
    critic = Critic()
    algorithm = Algorithm(preset="ppo", **written)
    return Parts(informative(), critic=critic, critic_only_steps=2, algorithm=algorithm), critic


async def test_in_its_warm_up_the_critic_alone_learns_and_nothing_is_published():
    parts, critic = with_critic()
    results = await parts.run(3)
    assert [r.version for r in results] == [0, 0, 1]
    assert [len(parts.trainer.trained), critic.steps] == [1, 3]
    metrics = [step_metrics(r) for r in results]
    assert [m["update_skipped"] for m in metrics] == [1, 1, 0]
    assert [m["value_loss"] for m in metrics] == [0.25] * 3
    assert [m["publish_bytes"] for m in metrics] == [0, 0, 100]


async def test_both_roles_learn_from_the_values_before_the_step():
    parts, critic = with_critic()
    await parts.run(4)
    assert critic.given == [(0, None), (1, None), (2, None), (3, None)]
    assert parts.trainer.given == (3, None)


async def test_both_roles_hear_of_a_kl_in_the_reward():
    parts, critic = with_critic(kl={"coef": 0.1, "estimator": "k1", "place": "reward"})
    await parts.run(3)
    assert critic.given[-1] == parts.trainer.given == (2, "token rewards")


async def test_an_error_of_the_critic_ends_the_loop_as_it_is():
    parts, critic = with_critic()

    async def critic_step(*_):
        raise EngineError("rank 1 is gone")

    critic.critic_step = critic_step
    with pytest.raises(EngineError, match="rank 1 is gone"):
        await parts.run(3)


async def test_before_each_update_the_trainer_is_as_the_last_step_left_it():
    parts = Parts(informative())
    updates = []

    async def before_update():
        updates.append(len(parts.trainer.trained))
        if len(updates) == 3:
            raise EngineError("the checkpoint failed")

    with pytest.raises(EngineError, match="the checkpoint failed"):
        await parts.run(5, before_update=before_update)
    assert updates == [0, 1, 2]
    assert len(parts.trainer.trained) == 2
