"""The loop: staleness, versions, skipped updates, errors."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from curricula.splits import Admitted
from engines.algorithms.spec import Algorithm
from engines.rollout.loop import fill
from engines.rollout.metrics import step_metrics
from engines.rollout.producer import Sampled
from engines.rollout.records.journals import RolloutJournal
from infra.errors import EngineError
from tests.parts.loop_parts import Notes, Parts, by_seed, informative, resumed, until_killed
from tests.parts.rollout_parts import domain

pytestmark = pytest.mark.unit


async def test_synchronous_training_sees_only_the_newest_weights():
    parts = Parts(informative(), slow=20)
    results = await parts.run(3)
    assert parts.trainer.trained == [[0] * 8, [1] * 8, [2] * 8]
    assert [r.version for r in results] == [1, 2, 3]
    assert parts.trainer.answered_meanwhile == [0, 0, 0], "the two take turns"
    assert parts.producer.source.next == 12


async def test_a_group_that_is_too_old_is_never_trained():
    parts = Parts(informative(), max_staleness=1)
    await fill(parts.producer)
    parts.policy.version = 2
    with pytest.raises(
        AssertionError, match="over 1 versions older than the policy, which is at 2"
    ):
        parts.buffer.take()
    assert len(parts.buffer.drop_stale()) == 4
    assert parts.buffer.take() == []


async def test_nothing_beyond_a_step_is_rolled_where_every_group_can_teach():
    results = await Parts(informative(), oversample=2.0).run(2)
    assert [[g.ticket for g in r.groups] for r in results] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [step_metrics(r)["groups_rolled"] for r in results] == [4, 4]
    assert [step_metrics(r)["unused_tokens"] for r in results] == [0, 0]


async def test_no_problem_of_a_pool_is_passed_over():
    """Of twelve problems eight a step: each is trained on ten times in fifteen steps. A wave of up
    to twelve that began behind all of these would always roll the same eight."""
    live = domain("d", float)
    pool = live.curriculum.problems("rl", 12, 0)
    live = replace(live, curriculum=Admitted(live.curriculum, {"rl": pool}))
    results = await Parts(informative(), wanted=8, oversample=1.5, domains=[live]).run(15)
    trained = Counter(g.problem.id.partition("@")[0] for r in results for g in r.groups)
    assert trained == {problem.id: 10 for problem in pool}


@pytest.mark.parametrize("is_flaky", [False, True])
@pytest.mark.parametrize("seed", range(12))
async def test_a_resumed_stage_takes_what_it_took_also_where_a_verdict_comes_now(
    tmp_path: Path, seed: int, is_flaky: bool
):
    """Rewards that failed in the first attempt answer in the second: more groups can teach, so a
    step would be full before it has what was trained on."""
    draws = random.Random(seed)
    attempts, notes = [0], Notes()
    multiple, save = draws.choice([2, 3, 5]), draws.randint(1, 3)
    sizes = {
        "oversample": draws.choice([1.0, 1.25, 1.5, 2.0]), "waves": draws.randint(1, 3),
        "wanted": draws.choice([3, 4, 5]),
    }  # fmt: skip

    def judge(answer: str) -> float:
        if is_flaky and not attempts[0] and int(answer) % 7 == 0:
            raise ValueError("not now")
        return float(int(answer) % multiple == 0)

    def parts(version: int = 0, kept: Notes = notes) -> Parts:
        journal = RolloutJournal(kept)
        return Parts(
            by_seed, domains=[domain("a", judge)], journal=journal, notes=kept, version=version,
            **sizes,
        )  # fmt: skip

    before, version = await until_killed(parts(), save, save + 3, tmp_path)
    attempts[0] = 1
    after = await resumed(parts(version), save, 8, tmp_path)
    assert [r.groups for r in after[:3]] == [r.groups for r in before[save:]]
    if not is_flaky:
        whole = await parts(kept=Notes()).run(8)
        assert [r.groups for r in whole] == [r.groups for r in before[:save] + after]
        rolled = [g.ticket for r in whole for g in r.sampled.groups]
        assert rolled == list(range(len(rolled)))


async def test_surplus_of_a_usual_share_of_drops_is_dropped_and_counted():
    """Half of a step's groups are usually dropped: eight start at once, and all of them can teach.
    Then a quarter is usual, and five start."""
    parts = Parts(informative(), oversample=2.0)
    parts.producer.dropped_share = 0.5
    results = await parts.run(2)
    assert [len(r.sampled.groups) for r in results] == [8, 5]
    assert [len(r.dropped) for r in results] == [4, 1]
    assert [r.waiting for r in results] == [0, 0]
    assert [step_metrics(r)["unused_tokens"] for r in results] == [16, 4]


async def test_too_few_groups_skip_the_update_and_keep_the_version():
    parts = Parts(lambda *_: "0")
    results = await parts.run(2)
    assert parts.trainer.trained == []
    assert [r.version for r in results] == [0, 0]
    metrics = step_metrics(results[0])
    assert metrics["update_skipped"] == 1.0
    assert metrics["zero_variance_share"] == 1.0
    assert metrics["groups_kept"] == 0.0


async def test_groups_of_a_skipped_update_are_neither_kept_nor_used():
    """One of eight groups can teach, less than a quarter of the eight wanted: its 4 tokens and
    those of the other seven, 4 each, are used by nothing."""
    parts = Parts(lambda p, s: str(s.seed % 2) if p == "<1>" else "0", wanted=8)
    parts.producer.group_size = 2
    results = await parts.run(6)
    for result in results:
        metrics = step_metrics(result)
        assert metrics["update_skipped"] == 1.0
        assert metrics["groups_kept"] == 0.0
        assert metrics["unused_tokens"] == metrics["generated_tokens"] > 0
    assert sum(len(result.groups) for result in results) > 0


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
    assert metrics["unused_tokens"] == 0.0
    assert metrics["trainer_idle_seconds"] == metrics["generate_seconds"]


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


async def test_a_recorded_take_that_is_too_old_by_now_is_not_repeated():
    """As where an attempt goes another way than the one before it, and skips no update."""
    parts = Parts(informative(), max_staleness=1)
    await fill(parts.producer)
    tickets = [group.ticket for group in parts.buffer._waiting]
    parts.policy.version = 2
    newer = parts.producer.source.draw(2)
    for ticket in newer:
        parts.producer.emit(*await parts.producer.roll_and_filter(ticket), Sampled())
    assert [group.ticket for group in parts.buffer.take(tickets)] == [t.number for t in newer]
