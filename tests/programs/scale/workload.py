"""What is rolled out: problems with answers of long-tailed length, at no cost of their own.

A simulated token stands for `TOKENS_EACH` tokens of a model: who schedules rollouts sees no
difference, and their arrays stay small.
"""

from __future__ import annotations

import asyncio
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from engines.rollout.drivers.session_host import End, SessionHost
from engines.types import (
    AssistantTurn,
    Demonstration,
    Environment,
    Message,
    Problem,
    Rollout,
    Split,
    Status,
    TokenIds,
    Transcript,
)

TOKENS_EACH = 64
PROMPT_TOKENS = 512
TOOL_TOKENS = 256
"""that a tool says"""
MEAN_TOKENS = 2000
"""of an answer"""
MOST_TOKENS = 8_000
_SEEDS = 1 << 31
_NORMAL = statistics.NormalDist()

Length: TypeAlias = Callable[[int], int]
"""tokens of the answer that a seed gives"""


def log_normal(sigma: float = 1.0) -> Length:
    """With `MEAN_TOKENS` on average before the longest are cut; its 99th percentile is 6 times
    that."""
    scale = math.log(MEAN_TOKENS) - sigma**2 / 2
    return lambda seed: _cut(math.exp(scale + sigma * _NORMAL.inv_cdf(_share(seed))))


def pareto(alpha: float = 1.5) -> Length:
    """A tail that falls as slowly as a power of the length; the same mean before the cut."""
    least = MEAN_TOKENS * (alpha - 1) / alpha
    return lambda seed: _cut(least * (1 - _share(seed)) ** (-1 / alpha))


LOG_NORMAL = log_normal()
PARETO = pareto()


def mean_tokens(length: Length) -> float:
    """Of answers that are cut at the longest."""
    count = 1 << 14
    return statistics.mean(length(i * (_SEEDS // count)) for i in range(count))


def _share(seed: int) -> float:
    """Between 0 and 1: seeds are hashes, so their shares are spread evenly."""
    return (seed + 0.5) / _SEEDS


def _cut(tokens: float) -> int:
    """A whole number of simulated tokens."""
    return max(1, round(min(tokens, MOST_TOKENS) / TOKENS_EACH)) * TOKENS_EACH


@dataclass(frozen=True, slots=True)
class ManyTurns:
    """A driver: between two turns of a rollout a tool takes its time and says something."""

    turns: int
    tool_s: float = 0.0
    """on average: some calls take no time, some twice as long"""

    async def run(self, problem: Problem, sessions: SessionHost) -> Rollout:
        session = sessions.open(sessions.prompt_ids)
        for turn in range(1, self.turns + 1):
            is_last = turn == self.turns
            await sessions.turn(session, max_new_tokens=MOST_TOKENS // TOKENS_EACH, is_last=is_last)
            if not is_last:
                share = len(session.tokens) * 0.6180339887498949 % 1.0
                await asyncio.sleep(2 * share * self.tool_s)
                session.extend([1] * (TOOL_TOKENS // TOKENS_EACH))
        said = [Message("assistant", "")] * self.turns
        return sessions.finish(End(Status.COMPLETED), said)


class SimulatedProblems:
    """Problem n is number n."""

    def problems(self, split: Split, count: int, seed: int, start: int = 0) -> list[Problem]:
        message = (Message("user", ""),)
        return [Problem(f"{n}", "simulated", message) for n in range(start, start + count)]

    def demonstrations(self, count: int, seed: int) -> list[Demonstration]:
        return []

    def environment(self) -> Environment | None:
        return None


class SimulatedChat:
    """All prompts are alike; text does not matter."""

    stop_token_ids = ()

    def decided(self, problem: Problem) -> Problem:
        return problem

    def prompt_ids(self, problem: Problem) -> list[int]:
        return [1] * (PROMPT_TOKENS // TOKENS_EACH)

    def continuation_ids(
        self,
        problem: Problem,
        turns: Sequence[Message],
        new: Sequence[Message],
        last_token: int | None,
    ) -> list[int]:
        return []

    def turn_ids(self, problem: Problem, turn: Message) -> list[int]:
        return []

    def parse(self, problem: Problem, token_ids: TokenIds, before: TokenIds = ()) -> AssistantTurn:
        return AssistantTurn("", "", None, ())

    def decode(self, token_ids: TokenIds) -> str:
        return ""


@dataclass(frozen=True, slots=True)
class SimulatedJudgement:
    reward: float
    breakdown: Mapping[str, float] = field(default_factory=dict[str, float])
    reason: str = ""
    turns: tuple[float, ...] = ()
    weights: Mapping[str, float] = field(default_factory=dict[str, float])
    failed: bool = False


@dataclass(frozen=True, slots=True)
class SimulatedJudge:
    """Rewards differ within a group, except where a problem is too easy to teach anything."""

    easy_share: float = 0.0
    """of all problems"""

    async def judge(self, transcript: Transcript) -> SimulatedJudgement:
        place = int(transcript.problem.id) * 0.6180339887498949 % 1.0
        return SimulatedJudgement(1.0 if place < self.easy_share else float(transcript.num_tokens))
