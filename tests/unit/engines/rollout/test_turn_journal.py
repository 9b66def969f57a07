"""A rollout that was cut off goes on from the turns that it had taken."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from engines.algorithms.spec import Keep
from engines.rollout.drivers.session import TokenSession
from engines.rollout.loop import fill
from engines.rollout.producer import Sampled
from engines.rollout.records.journals import NotedTurn, TurnJournal
from engines.types import AssistantTurn, Message, Problem, Sample, Sampling, Step
from tests.parts.loop_parts import Notes
from tests.parts.rollout_parts import Policy, domain, ids, producer_of, roller

pytestmark = pytest.mark.unit

TURNS = 3
ROLLOUTS = 4


class Repeats:
    """Asks for three turns, and says each time what it `hears`."""

    def __init__(self, hears: str = "again") -> None:
        self._hears = hears
        self.steps = 0

    async def start(self, problem: Problem) -> Repeats:
        return self

    async def step(self, turn: AssistantTurn) -> Step:
        self.steps += 1
        return Step((Message("user", self._hears),))

    async def close(self) -> None: ...


def say(prompt: str, sampling: Sampling) -> str:
    assert sampling.seed is not None
    return str(sampling.seed % 10)


async def step_of(
    policy: Policy, notes: Notes, world: Repeats, temperature: float = 1.0
) -> tuple[Sampled, TurnJournal]:
    turns = TurnJournal(notes)
    made, _ = producer_of(
        roller(policy),
        [domain("d", float, environment=world, max_turns=TURNS, max_new_tokens=20)],
        groups_per_step=1, group_size=ROLLOUTS, policy=policy, turns=turns, keep=Keep(),
    )  # fmt: skip
    made.temperature = temperature
    await made.recover(0)
    return await fill(made), turns


async def cut_off(calls: int) -> tuple[Notes, Policy]:
    """A step whose engine answers so many calls and no more; then it is killed."""
    notes, policy = Notes(), Policy(say)
    policy.free_calls = calls
    policy.may_answer.clear()
    running = asyncio.create_task(step_of(policy, notes, Repeats()))
    while not notes.kept["turns"]:
        await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return notes, policy


def samples(sampled: Sampled) -> Sequence[Sample]:
    return sampled.groups[0].samples


async def test_turns_that_were_taken_are_not_sampled_again() -> None:
    whole, _ = await step_of(Policy(say), Notes(), Repeats())
    notes, _ = await cut_off(calls=ROLLOUTS + 2)
    rest, world = Policy(say), Repeats()
    sampled, turns = await step_of(rest, notes, world)
    assert samples(sampled) == samples(whole)
    assert all(
        s.kept is not None and np.array_equal(~s.kept[0::2], s.tokens[s.loss_mask])
        for s in samples(sampled)
    )
    assert len(rest.calls) == TURNS * ROLLOUTS - (ROLLOUTS + 2)
    assert turns.recovered_tokens == 2 * (ROLLOUTS + 2)
    assert world.steps == TURNS * ROLLOUTS, "an environment hears all of it again"


async def test_what_other_weights_wrote_is_sampled_again() -> None:
    notes, _ = await cut_off(calls=ROLLOUTS)
    newer = Policy(say)
    newer.version = 1
    sampled, turns = await step_of(newer, notes, Repeats())
    assert turns.recovered_tokens == 0
    assert {s.weight_versions.oldest for s in samples(sampled)} == {1}


async def test_what_was_sampled_at_another_temperature_is_sampled_again() -> None:
    notes, _ = await cut_off(calls=ROLLOUTS)
    sampled, turns = await step_of(Policy(say), notes, Repeats(), temperature=1.1)
    assert turns.recovered_tokens == 0
    assert {s.temperature for s in samples(sampled)} == {1.1}


async def test_a_turn_after_another_answer_of_the_environment_is_sampled_again() -> None:
    notes, _ = await cut_off(calls=2 * ROLLOUTS)
    rest = Policy(say)
    sampled, turns = await step_of(rest, notes, Repeats(hears="other"))
    assert turns.recovered_tokens == 2 * ROLLOUTS, "the first turns"
    assert len(rest.calls) == (TURNS - 1) * ROLLOUTS
    whole, _ = await step_of(Policy(say), Notes(), Repeats(hears="other"))
    assert samples(sampled) == samples(whole)


async def test_last_turns_and_damaged_notes_cost_nothing() -> None:
    notes = Notes()
    await step_of(Policy(say), notes, Repeats())
    noted = notes.kept["turns"]
    assert noted, "of the turns before the last"
    notes.kept["turns"] = [(number, data[:-1]) for number, data in noted]
    policy = Policy(say)
    _, turns = await step_of(policy, notes, Repeats())
    assert turns.recovered_tokens == 0
    assert len(policy.calls) == TURNS * ROLLOUTS
    single = Notes()
    made, _ = producer_of(
        roller(policy), [domain("d", float)], groups_per_step=1, group_size=2,
        turns=TurnJournal(single), policy=policy,
    )  # fmt: skip
    await fill(made)
    assert not single.kept, "one turn is the whole rollout"


async def test_a_turn_that_was_cut_off_goes_on_where_the_budget_is_larger() -> None:
    """As of sessions side by side, which share one: who is asked first is up to the clock."""
    notes, policy = TurnJournal(Notes()), Policy(lambda prompt, _: "123456"[len(prompt) - 1 :])
    prompt, kept = ids("<"), list[NotedTurn]()

    async def made(known: Sequence[NotedTurn], most: int) -> list[tuple[str, str]]:
        turns = replace(
            notes.of(0, lambda versions: True),
            known={turn.place: turn for turn in known},
            keep=kept.append,
        )
        session = TokenSession(turns.engine_of("0/p#0", policy.generate), prompt)
        told: list[tuple[str, str]] = []
        while not told or (told[-1][1] == "abort" and most > session.num_generated):
            turn = await session.turn(Sampling(most - session.num_generated, seed=1))
            told.append(("".join(map(chr, turn.token_ids)), turn.finish))
        return told

    assert await made((), 2) == [("12", "length")]
    assert await made(kept, 2) == [("12", "length")], "cut off there again"
    assert await made(kept, 4) == [("12", "abort"), ("34", "length")]
    assert await made(kept[:1], 1) == [("1", "length")], "not more than is allowed"
    assert notes.recovered_tokens == 4
