"""Drivers by name: what they are given, what bounds them, and the example."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from engines.rollout.drivers.driver import Conversation, build
from engines.rollout.drivers.session_host import SessionHost
from engines.types import Problem, Rollout, Status
from infra.errors import InputError
from infra.processes.coroutines import waiting_for_turn
from tasks.domain import DriverSpec
from tests.parts.rollout_parts import Policy, domain, roller

pytestmark = pytest.mark.unit

EXAMPLE = Path(__file__).parents[4] / "examples/own_driver"


class Own:
    """Takes what the domain has, and an option."""

    def __init__(self, environment: Any, max_turns: int, tries: int = 1) -> None:
        self.given = (environment, max_turns, tries)

    async def run(self, problem: Problem, sessions: SessionHost) -> Rollout:
        raise NotImplementedError


class Bare:
    """Needs nothing."""

    async def run(self, problem: Problem, sessions: SessionHost) -> Rollout:
        raise NotImplementedError


def test_a_driver_gets_what_its_constructor_asks_for() -> None:
    environment: Any = object()
    own = build(f"{__name__}:Own", {"tries": 3}, environment, 4)
    assert isinstance(own, Own)
    assert own.given == (environment, 4, 3)
    assert isinstance(build(f"{__name__}:Bare", {}, environment, 4), Bare)
    assert isinstance(build("conversation", {}, None, 1), Conversation)


def test_wrong_options_are_named() -> None:
    with pytest.raises(InputError, match="max_turns: the driver gets the domain's"):
        build(f"{__name__}:Own", {"max_turns": 2}, None, 1)
    with pytest.raises(InputError, match="attempts"):
        build(f"{__name__}:Own", {"attempts": 2}, None, 1)


def test_the_program_of_a_harness_counts_among_the_parts_of_its_stage() -> None:
    spec = DriverSpec(name="harness", options={"command": ["x"], "program": "my_agent"})
    assert spec.parts == ("engines.agents.harness:Harness", "my_agent:")


async def roll(live: Any, policy: Policy) -> Rollout:
    problem = live.curriculum.problems("rl", 1, 0)[0]
    (rollout,) = await roller(policy).roll_group(
        live, problem, 1, temperature=1.0, group_id="g", seed_name="g"
    )
    return rollout


async def test_a_driver_that_does_nothing_between_two_turns_is_ended() -> None:
    ended: list[bool] = []

    class Hangs:
        async def run(self, problem: Problem, sessions: SessionHost) -> Rollout:
            await sessions.turn(sessions.open(sessions.prompt_ids))
            try:
                await asyncio.sleep(3600)
            finally:
                ended.append(True)
            raise AssertionError

    live = domain("d", float, driver=Hangs(), driver_timeout_s=0.05)
    rollout = await roll(live, Policy(lambda *_: "7"))
    assert rollout.status is Status.FAILED
    assert "no turn of the policy, and no end, for 0.05 s" in rollout.transcript.reason
    assert ended == [True]


async def test_a_turn_may_take_longer_than_the_driver_may() -> None:
    class Slow(Policy):
        async def generate(self, prompt_ids: Any, sampling: Any) -> Any:
            await asyncio.sleep(0.2)
            return await super().generate(prompt_ids, sampling)

    live = domain("d", float, driver=Conversation(None), driver_timeout_s=0.1)
    assert (await roll(live, Slow(lambda *_: "7"))).status is Status.COMPLETED


async def test_waiting_for_its_turn_is_not_the_drivers_time() -> None:
    class Waits(Conversation):
        async def run(self, problem: Problem, sessions: SessionHost) -> Rollout:
            with waiting_for_turn():
                await asyncio.sleep(0.3)
            return await super().run(problem, sessions)

    live = domain("d", float, driver=Waits(None), driver_timeout_s=0.1)
    assert (await roll(live, Policy(lambda *_: "7"))).status is Status.COMPLETED


async def test_the_example_trains_on_all_answers_and_judges_the_most_frequent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    answers = iter(["3", "7", "7"])
    live = domain(
        "d", float, driver=build("majority:Majority", {"max_tokens": 2}, None, 1), max_new_tokens=6
    )
    rollout = await roll(live, Policy(lambda *_: next(answers)))
    sys.modules.pop("majority")
    assert rollout.transcript.answer == "7"
    assert [s.reward for s in rollout.samples] == [7.0, 7.0, 7.0]
    assert [chr(s.tokens[-2]) for s in rollout.samples] == ["3", "7", "7"]
    assert [s.branch for s in rollout.samples] == [0, 1, 2]
