"""Curricula, environments and rewards that break their contract, each in one way."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numerals

from engines.rollout.drivers.session_host import End
from engines.types import (
    AssistantTurn,
    Demonstration,
    Environment,
    Episode,
    Message,
    Problem,
    Split,
    Status,
    Step,
    Tool,
    Transcript,
    Verdict,
)

# Curricula


class NoProblems(numerals.Numerals):
    def problems(self, split: Split, count: int, seed: int, start: int = 0) -> Sequence[Problem]:
        return []


class TooFew(numerals.Numerals):
    def problems(self, split: Split, count: int, seed: int, start: int = 0) -> Sequence[Problem]:
        return super().problems(split, count, seed, start)[:1]


class TooFewHeldOut(numerals.Numerals):
    def problems(self, split: Split, count: int, seed: int, start: int = 0) -> Sequence[Problem]:
        most = 5 if split == "heldout" else count
        return super().problems(split, min(count, most), seed, start)


class NoDemonstrations(numerals.Numerals):
    def demonstrations(self, count: int, seed: int) -> Sequence[Demonstration]:
        return []


class OneId(numerals.Numerals):
    def problems(self, split: Split, count: int, seed: int, start: int = 0) -> Sequence[Problem]:
        return [replace(p, id="x") for p in super().problems(split, count, seed, start)]


class IdsOfTwoSplits(numerals.Numerals):
    def problems(self, split: Split, count: int, seed: int, start: int = 0) -> Sequence[Problem]:
        found = super().problems(split, count, seed, start)
        return [replace(p, id=str(start + i)) for i, p in enumerate(found)]


class Leaky(numerals.Numerals):
    def __init__(self) -> None:
        super().__init__()
        self.numbers = {split: list(range(1, 50)) for split in self.numbers}


class RaisesForRl(numerals.Numerals):
    def problems(self, split: Split, count: int, seed: int, start: int = 0) -> Sequence[Problem]:
        if split == "rl":
            raise KeyError("no rl data")
        return super().problems(split, count, seed, start)


class SetForReference(numerals.Numerals):
    def problems(self, split: Split, count: int, seed: int, start: int = 0) -> Sequence[Problem]:
        odd: Any = {1, 2}
        return [replace(p, reference=odd) for p in super().problems(split, count, seed, start)]


class Dicts(numerals.Numerals):
    def problems(self, split: Split, count: int, seed: int, start: int = 0) -> Any:
        found = super().problems(split, count, seed, start)
        return [{"id": p.id, "messages": p.messages[0].content} for p in found]


class Set(numerals.Numerals):
    def problems(self, split: Split, count: int, seed: int, start: int = 0) -> Any:
        return {p.id for p in super().problems(split, count, seed, start)}


class Texts(numerals.Numerals):
    def problems(self, split: Split, count: int, seed: int, start: int = 0) -> Sequence[Problem]:
        text: Any = "roman 14"
        return [replace(p, messages=text) for p in super().problems(split, count, seed, start)]


class Drifting(numerals.Numerals):
    """Position i depends on how often was drawn."""

    calls = itertools.count()

    def problems(self, split: Split, count: int, seed: int, start: int = 0) -> Sequence[Problem]:
        return super().problems(split, count, seed, start + next(self.calls))


class IgnoresStart(numerals.Numerals):
    def problems(self, split: Split, count: int, seed: int, start: int = 0) -> Sequence[Problem]:
        return super().problems(split, count, seed)


class EndsWithTheUser(numerals.Numerals):
    def demonstrations(self, count: int, seed: int) -> Sequence[Demonstration]:
        shown = super().demonstrations(count, seed)
        return [replace(d, turns=(*d.turns, Message("user", "thanks"))) for d in shown]


class NestedTool(numerals.Numerals):
    def problems(self, split: Split, count: int, seed: int, start: int = 0) -> Sequence[Problem]:
        odd: Any = {"q": {"type": "string"}}
        tools = (Tool("search", "Search.", odd),)
        return [replace(p, tools=tools) for p in super().problems(split, count, seed, start)]


class WithoutEnvironment:
    def problems(self, *arguments: Any) -> Any: ...

    def demonstrations(self, *arguments: Any) -> Any: ...


# Environments


class _Playing(numerals.Numerals, Environment):
    def environment(self) -> Environment:
        return self

    async def start(self, problem: Problem) -> Episode:
        return _Episode(self.react)

    async def react(self) -> Any:
        return Step(done=True)


class _Episode(Episode):
    def __init__(self, react: Any) -> None:
        self._react = react

    async def step(self, turn: AssistantTurn) -> Step:
        return await self._react()

    async def close(self) -> None: ...


class StartRaises(_Playing):
    async def start(self, problem: Problem) -> Episode:
        raise ConnectionError("my tool server is down")


class StepRaises(_Playing):
    async def react(self) -> Any:
        raise ValueError("bad step")


class StepHangs(_Playing):
    async def react(self) -> Any:
        await asyncio.sleep(3600)


class NoEnvironmentComes(_Playing):
    def environment(self) -> Environment:
        raise OSError("no tools here")


class StepGivesText(_Playing):
    async def react(self) -> Any:
        return "XIV"


# Rewards


async def raises(transcript: Transcript) -> Verdict:
    raise RuntimeError("my judge is broken")


async def text(transcript: Transcript) -> Any:
    return "good"


async def number(transcript: Transcript) -> Any:
    return 0.5


async def nothing(transcript: Transcript) -> Any: ...


async def above_one(transcript: Transcript) -> Verdict:
    return Verdict(7.0)


async def not_a_number(transcript: Transcript) -> Verdict:
    return Verdict(float("nan"))


async def constant(transcript: Transcript) -> Verdict:
    return Verdict(1.0)


async def always_zero(transcript: Transcript) -> Verdict:
    return Verdict(0.0)


_calls = itertools.count()


async def half_raises(transcript: Transcript) -> Verdict:
    if (call := next(_calls)) % 2:
        raise RuntimeError("flaky judge")
    return Verdict(1 / (call + 1))


def plain(transcript: Transcript) -> Verdict:
    return Verdict(1.0)


async def sleeps(transcript: Transcript) -> Verdict:
    await asyncio.sleep(3600)
    return Verdict(1.0)


async def blocks(transcript: Transcript) -> Verdict:
    time.sleep(3600)
    return Verdict(1.0)


async def leaves(transcript: Transcript) -> Verdict:
    raise SystemExit(4)


async def dies(transcript: Transcript) -> Verdict:
    os._exit(5)


class NoReward: ...


# Drivers


class DriverRaises:
    async def run(self, problem: Problem, sessions: Any) -> Any:
        raise ConnectionError("my harness is down")


class GivesText:
    async def run(self, problem: Problem, sessions: Any) -> Any:
        turn = await sessions.turn(sessions.open(sessions.prompt_ids))
        return turn.said.content


class WritesNothing:
    async def run(self, problem: Problem, sessions: Any) -> Any:
        return sessions.finish(End(Status.COMPLETED), [])


class DriverHangs:
    async def run(self, problem: Problem, sessions: Any) -> Any:
        await sessions.turn(sessions.open(sessions.prompt_ids))
        await asyncio.sleep(3600)


class WithoutRun:
    pass
