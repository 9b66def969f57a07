"""Which problems may be trained on: those that only a solution solves, each time, in time.

A problem is admitted if
    its own solution scores 1, twice, with the same answers of its tools
    doing nothing scores 0
    random actions score no more than a bound, and are answered the same when they are repeated
    no tool, no file name and no prompt shows what would give the solution away
    each episode stays within a time
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from curricula.admissible import Admissible
from engines.rollout.protocols import Judge
from engines.types import Environment, Message, Problem
from infra.errors import InputError
from tasks.admission.play import Played, play
from tasks.admission.policies import NOTHING, Policy, act_at_random, looks, say, words_of

CONCURRENT = 4
"""problems at a time"""
_SHOWN = 60
"""characters of a secret, or an answer, in a reason"""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What is asked of a problem."""

    random_episodes: int = 4
    random_outcome: float = 0.1
    """mean outcome of random actions, at most"""
    seconds: float = 20.0
    """of an episode and its judgement"""
    turns: int = 16
    """of an episode"""


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem and why it is refused; without reasons it is admitted."""

    problem: Problem
    reasons: list[str] = field(default_factory=list[str])

    @property
    def is_admitted(self) -> bool:
        return not self.reasons


async def admit(
    curriculum: object,
    environment: Environment | None,
    judge: Judge,
    problems: Sequence[Problem],
    bounds: Bounds | None = None,
) -> list[Finding]:
    """A finding for each problem, in order. Raises InputError for a curriculum that cannot solve
    its own problems."""
    if not isinstance(curriculum, Admissible):
        raise InputError(
            f"{type(curriculum).__name__} cannot be asked for solutions: give it the methods "
            "`solution(problem)` and `secrets(problem)` (curricula/admissible.py)."
        )
    room = asyncio.Semaphore(CONCURRENT)

    async def one(problem: Problem) -> Finding:
        async with room:
            inspector = _Inspector(curriculum, environment, judge, problem, bounds or Bounds())
            return Finding(problem, await inspector.reasons())

    return list(await asyncio.gather(*map(one, problems)))


class _Inspector:
    """Plays one problem in every way."""

    def __init__(
        self,
        curriculum: Admissible,
        environment: Environment | None,
        judge: Judge,
        problem: Problem,
        bounds: Bounds,
    ) -> None:
        self._environment, self._judge = environment, judge
        self._problem, self._bounds = problem, bounds
        self._solution = curriculum.solution(problem)
        self._secrets = [secret for secret in curriculum.secrets(problem) if secret]

    async def reasons(self) -> list[str]:
        try:
            solved = [await self._play(say(self._solution)) for _ in range(2)]
            idle = await self._play(lambda _: NOTHING)
        except _Fault as fault:
            return [str(fault)]
        reasons = _of_solution(*solved)
        if idle.outcome > 0:
            reasons.append(f"doing nothing scores {idle.outcome:g}")
        if reasons:
            return reasons
        try:
            return await self._of_random_actions() + await self._of_leaks()
        except _Fault as fault:
            return [str(fault)]

    async def _of_random_actions(self) -> list[str]:
        episodes, turns = self._bounds.random_episodes, self._bounds.turns
        outcomes: list[float] = []
        for seed in range(episodes):
            first, second = [
                await self._play(act_at_random(self._problem, seed, turns)) for _ in range(2)
            ]
            if difference := _difference(first, second):
                return [f"random actions, repeated, differ: {difference}"]
            outcomes.append(first.outcome)
        mean = sum(outcomes) / max(1, episodes)
        bound = self._bounds.random_outcome
        return [f"random actions score {mean:g}, more than {bound:g}"] if mean > bound else []

    async def _of_leaks(self) -> list[str]:
        """Asks for all that can be seen in one look, each in an episode of its own."""
        if where := self._leaked([m.content for m in self._problem.messages]):
            return [f"its prompt shows {where}"]
        words = words_of(self._problem.messages)
        for look_number in range(2):  # the second uses the words that the first found
            seen: list[Message] = []
            for call in looks(self._problem.tools, words):
                turn = Message("assistant", "", tool_calls=(call,))
                played = await self._play(say([turn]))
                if where := self._leaked(played.told):
                    return [f"the tool {call.name} shows {where}"]
                seen += [m for m in played.messages if m.role == "tool"]
            words = words_of(seen)
            if look_number == 0 and not words:
                break
        return []

    def _leaked(self, texts: Sequence[str]) -> str:
        for secret in self._secrets:
            if any(_plain(secret) in _plain(text) for text in texts):
                return f"{secret[:_SHOWN]!r}"
        return ""

    async def _play(self, policy: Policy) -> Played:
        bounds = self._bounds
        played = await play(
            self._environment,
            self._judge,
            self._problem,
            policy,
            turns=bounds.turns,
            seconds=bounds.seconds,
        )
        if played.fault:
            raise _Fault(f"an episode failed: {played.fault}")
        return played


class _Fault(Exception):
    """An episode that says nothing of the problem but that it does not work."""


def _of_solution(first: Played, second: Played) -> list[str]:
    if first.outcome != second.outcome:
        return [f"its solution scores {first.outcome:g}, then {second.outcome:g}"]
    if first.outcome != 1.0:
        return [f"its solution scores {first.outcome:g}: {first.reason or 'no reason given'}"]
    if difference := _difference(first, second):
        return [f"its solution, repeated, differs: {difference}"]
    return []


def _difference(first: Played, second: Played) -> str:
    if first.outcome != second.outcome:
        return f"outcome {first.outcome:g}, then {second.outcome:g}"
    for one, other in zip(first.told, second.told, strict=False):
        if one != other:
            return f"{one[:_SHOWN]!r}, then {other[:_SHOWN]!r}"
    if len(first.told) != len(second.told):
        return f"{len(first.told)} answers of tools, then {len(second.told)}"
    return ""


def _plain(text: str) -> str:
    """Without regard to white space and case: a leak need not be to the letter."""
    return "".join(text.split()).lower()
