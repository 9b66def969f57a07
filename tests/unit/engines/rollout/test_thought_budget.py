"""A thought is ended at its budget, or made to go on; what is put in is nobody's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from engines.rollout.drivers.pace import Pace
from engines.rollout.protocols import ThoughtBudget
from engines.rollout.workers.worker import RolloutWorker
from engines.rollout.workers.worker_pool import WorkerPool
from engines.types import Rollout, Sampling, Status
from tests.parts.rollout_parts import CharChat, Policy, domain, roller
from tests.unit.engines.rollout.test_worker_pool import Handle, Servers

pytestmark = pytest.mark.unit

LONG = ThoughtBudget(tokens=100)


def thinks(of: int) -> Callable[[str, Sampling], str]:
    """Thinks so many letters in all, and answers 7."""

    def say(prompt: str, sampling: Sampling) -> str:
        turn = prompt.rpartition(">")[2]
        if "}" in turn:
            return "7"[len(turn.rpartition("}")[2]) :]
        letters = turn.removeprefix("{").replace("Wait", "")
        whole = "abcdefghijklmnopqrstuvwxyz"[:of]
        return ("" if turn else "{") + whole[len(letters) :] + "}7"

    return say


async def rolled(
    policy: Policy,
    budget: ThoughtBudget | None,
    *,
    most: int = 40,
    pace: Pace | None = None,
    context: int = 192,
) -> Rollout:
    made = domain("d", lambda answer: 1.0, max_new_tokens=most)
    problem = made.curriculum.problems("heldout", 1, 0)[0]
    (rollout,) = await roller(policy, context_length=context + 8).roll_group(
        made, problem, 1, temperature=1.0, group_id="g", seed_name="g", thought=budget, pace=pace
    )
    return rollout


def text(rollout: Rollout) -> str:
    return CharChat().decode(rollout.samples[0].tokens).rpartition(">")[2]


def forced(rollout: Rollout) -> str:
    """What the policy did not write, after the prompt."""
    sample = rollout.samples[0]
    put_in = ~sample.loss_mask
    put_in[: sample.num_prompt_tokens] = False
    assert not sample.logprobs[put_in].any()
    assert set(sample.weight_versions.of_each()[put_in]) <= {-1}
    assert (sample.weight_versions.of_each()[sample.loss_mask] == 0).all()
    assert sample.metadata.get("forced_tokens", 0) == int(put_in.sum())
    return CharChat().decode(sample.tokens[put_in])


async def test_a_thought_that_is_too_long_is_ended_and_the_answer_follows() -> None:
    policy = Policy(thinks(of=20))
    rollout = await rolled(policy, ThoughtBudget(tokens=5))
    assert (text(rollout), forced(rollout)) == ("{abcd}7", "}")
    assert rollout.status is Status.COMPLETED
    assert len({sampling.seed for _, sampling in policy.calls}) == 1, "one turn"


async def test_a_thought_within_its_budget_is_as_without_one() -> None:
    within, free = [await rolled(Policy(thinks(of=3)), budget) for budget in (LONG, None)]
    assert within.samples == free.samples
    assert text(free) == "{abc}7"
    none = await rolled(Policy(lambda *_: "7"), ThoughtBudget(tokens=5))
    assert (text(none), forced(none)) == ("7", "")


async def test_a_thought_that_ends_is_made_to_go_on() -> None:
    def say(prompt: str, sampling: Sampling) -> str:
        turn = prompt.rpartition(">")[2]
        return "7" if "}" in turn else {"{ab": "}7", "{abWait": "cd}7"}.get(turn, "{ab}7")

    rollout = await rolled(Policy(say), ThoughtBudget(waits=1))
    assert (text(rollout), forced(rollout)) == ("{abWaitcd}7", "Wait")
    rollout = await rolled(Policy(say), ThoughtBudget(tokens=4, waits=1))
    assert (text(rollout), forced(rollout)) == ("{abWaitc}7", "Wait}")
    assert rollout.samples[0].num_trained_tokens == len("{abc7") + 1, "with the end of the turn"


async def test_what_is_put_in_leaves_the_context_as_long_as_it_is() -> None:
    """The prompt has three tokens, and a session has 20 of them: each `Wait` takes four."""

    def say(prompt: str, sampling: Sampling) -> str:
        turn = prompt.rpartition(">")[2]
        if "}" in turn:
            return "7" * sampling.max_new_tokens
        return ("" if turn else "{") + "ab" + "}"

    policy = Policy(say)
    budget = ThoughtBudget(waits=9)
    rollout = await rolled(policy, budget, context=20)
    assert (text(rollout), forced(rollout)) == ("{abWaitabWaitab}7", "WaitWait")
    assert (rollout.status, rollout.transcript.reason) == (Status.TRUNCATED, "context length")
    asked = [len(prompt) + sampling.max_new_tokens for prompt, sampling in policy.calls]
    assert max(asked) == 20
    for context in range(8, 40):
        policy = Policy(say)
        rollout = await rolled(policy, budget, context=context)
        asked = [len(prompt) + sampling.max_new_tokens for prompt, sampling in policy.calls]
        assert max(asked) <= context
        assert len(rollout.samples[0].tokens) <= context
    # The end of a thought that is too long takes a token as well.
    rollout = await rolled(Policy(thinks(of=20)), ThoughtBudget(tokens=8), context=12)
    assert (text(rollout), forced(rollout)) == ("{abcdefgh", "")


async def test_the_turn_s_budget_ends_the_turn_in_its_thought() -> None:
    rollout = await rolled(Policy(thinks(of=20)), LONG, most=6)
    assert (text(rollout), forced(rollout)) == ("{abcde", "")
    assert rollout.status is Status.TRUNCATED


async def test_in_pieces_and_after_interruptions_it_is_the_same() -> None:
    whole = await rolled(Policy(thinks(of=20)), ThoughtBudget(tokens=9))
    pace = Pace(2)
    rolling = asyncio.create_task(rolled(Policy(thinks(of=20)), ThoughtBudget(tokens=9), pace=pace))
    while not rolling.done():
        await asyncio.wait(
            {rolling, asyncio.create_task(pace.rest())}, return_when="FIRST_COMPLETED"
        )
        if not rolling.done():
            pace.begin_round(pace.round + 1)
    assert rolling.result().samples == whole.samples
    assert pace.round > 3


async def test_workers_force_as_the_stage_does() -> None:
    class Client(Policy):
        on_trouble: Callable[[], object] = staticmethod(lambda: None)
        must_wait: Callable[[], bool] = staticmethod(lambda: False)

    made = domain("d", lambda answer: 1.0, max_new_tokens=40)

    async def start(position: int) -> Handle:
        client = Client(thinks(of=20))
        worker = RolloutWorker(
            client=client, chat=CharChat(), domains=[made], context_length=200, seed=0
        )
        return Handle(client, worker)

    pool = WorkerPool(start, 1, servers=Servers(), chat=CharChat())
    await pool.open()
    problem = made.curriculum.problems("heldout", 1, 0)[0]
    rollouts = await pool.roll_group(
        made, problem, 1, temperature=1.0, group_id="g", seed_name="g",
        thought=ThoughtBudget(tokens=5),
    )  # fmt: skip
    await pool.close()
    here = await rolled(Policy(thinks(of=20)), ThoughtBudget(tokens=5))
    assert rollouts[0].samples == here.samples
