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
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, Self, TypeAlias

from pydantic import Field, PositiveFloat, PositiveInt

from curricula.splits import Admissible
from engines.rollout.protocols import Judge
from engines.rollout.records.journals import NoteWriter
from engines.types import Environment, Message, Problem, Split
from infra.config import Config
from infra.errors import InputError, TributaryError
from infra.store.removal import NoteKind
from tasks.admit.play import NOTHING, Played, Policy, act_at_random, looks, play, say, words_of
from tasks.resources import NOTE_SECONDS
from tasks.stage import Checkpoints

CONCURRENT = 4
"""problems at a time"""
_SHOWN = 60
"""characters of a secret, or an answer, in a reason"""


Cause: TypeAlias = Literal["unsolved", "varies", "idle", "random", "leak", "slow", "broken"]
CAUSES: Mapping[str, str] = {
    "unsolved": "its own solution does not score 1",
    "varies": "a repetition differs",
    "idle": "doing nothing scores",
    "random": "random actions score",
    "leak": "its prompt or a tool shows the solution",
    "slow": "an episode takes too long",
    "broken": "the curriculum, the environment or its judge failed",
}
"""by `Cause`: why a problem is refused"""


class Bounds(Config):
    """What is asked of a problem."""

    random_episodes: PositiveInt = 4
    random_outcome: float = Field(default=0.1, ge=0, lt=1)
    """mean outcome of random actions, at most"""
    seconds: PositiveFloat = 20.0
    """of an episode and its judgement"""


@dataclass(frozen=True, slots=True)
class Refusal:
    """One reason why a problem is refused, e.g. `Refusal("idle", "doing nothing scores 1")`."""

    cause: Cause
    text: str


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem and why it is refused; without refusals it is admitted."""

    problem: Problem
    refusals: list[Refusal] = field(default_factory=list[Refusal])

    @property
    def is_admitted(self) -> bool:
        return not self.refusals

    @property
    def reasons(self) -> list[str]:
        return [refusal.text for refusal in self.refusals]


_NONE: Mapping[str, Sequence[Refusal]] = MappingProxyType({})


async def admit(
    curriculum: object,
    environment: Environment | None,
    judge: Judge,
    problems: Sequence[Problem],
    bounds: Bounds | None = None,
    *,
    turns: int = 16,
    known: Mapping[str, Sequence[Refusal]] = _NONE,
    on_found: Callable[[Finding], None] = lambda found: None,
) -> list[Finding]:
    """Return a finding for each problem, in order. Raises InputError for a curriculum that cannot
    solve its own problems.

    `turns`: most of an episode. Problems in `known` (by id) are not tried again; the findings on
    all others are handed to `on_found` as they come.
    """
    if not isinstance(curriculum, Admissible):
        raise InputError(
            f"{type(curriculum).__name__} cannot be asked for solutions: give it the methods "
            "`solution(problem)` and `secrets(problem)` (curricula/splits.py)."
        )
    room = asyncio.Semaphore(CONCURRENT)

    async def one(problem: Problem) -> Finding:
        if problem.id in known:
            return Finding(problem, list(known[problem.id]))
        async with room:
            await asyncio.sleep(0)  # an environment may never wait, and others must get on
            tried = _Inspector(curriculum, environment, judge, problem, bounds or Bounds(), turns)
            found = Finding(problem, await tried.refusals())
        on_found(found)
        return found

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
        turns: int,
    ) -> None:
        self._environment, self._judge = environment, judge
        self._problem, self._bounds, self._turns = problem, bounds, turns
        self._curriculum = curriculum

    async def refusals(self) -> list[Refusal]:
        try:
            self._solution = self._curriculum.solution(self._problem)
            self._secrets = [s for s in self._curriculum.secrets(self._problem) if s]
        except TributaryError:
            raise
        except Exception as error:  # the curriculum's own code, of this problem
            said = f"its solution cannot be had: {type(error).__name__}: {error}"
            return [Refusal("broken", said)]
        try:
            solved = [await self._play(say(self._solution)) for _ in range(2)]
            idle = await self._play(lambda _: NOTHING)
        except _Fault as fault:
            return [fault.refusal]
        found = _of_solution(*solved)
        if idle.outcome > 0:
            found.append(Refusal("idle", f"doing nothing scores {idle.outcome:g}"))
        if found:
            return found
        try:
            return await self._of_random_actions() + await self._of_leaks()
        except _Fault as fault:
            return [fault.refusal]

    async def _of_random_actions(self) -> list[Refusal]:
        episodes = self._bounds.random_episodes
        outcomes: list[float] = []
        for seed in range(episodes):
            first, second = [
                await self._play(act_at_random(self._problem, seed, self._turns)) for _ in range(2)
            ]
            if difference := _difference(first, second):
                return [Refusal("varies", f"random actions, repeated, differ: {difference}")]
            outcomes.append(first.outcome)
        mean = sum(outcomes) / episodes
        bound = self._bounds.random_outcome
        if mean <= bound:
            return []
        return [Refusal("random", f"random actions score {mean:g}, more than {bound:g}")]

    async def _of_leaks(self) -> list[Refusal]:
        """Asks for all that can be seen in one look, each in an episode of its own."""
        if not self._secrets:
            return []
        if where := self._leaked([m.content for m in self._problem.messages]):
            return [Refusal("leak", f"its prompt shows {where}")]
        words = words_of(self._problem.messages)
        for look_number in range(2):  # the second uses the words that the first found
            seen: list[Message] = []
            for call in looks(self._problem.tools, words):
                turn = Message("assistant", "", tool_calls=(call,))
                played = await self._play(say([turn]))
                if where := self._leaked(played.told):
                    return [Refusal("leak", f"the tool {call.name} shows {where}")]
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
        seconds = self._bounds.seconds
        played = await play(
            self._environment,
            self._judge,
            self._problem,
            policy,
            turns=self._turns,
            seconds=seconds,
        )
        if played.is_late:
            raise _Fault(Refusal("slow", f"an episode was not over after {seconds:g} s"))
        if played.fault:
            raise _Fault(Refusal("broken", f"an episode failed: {played.fault}"))
        return played


class _Fault(Exception):
    """An episode that says nothing of the problem but that it does not work."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.text)
        self.refusal = refusal


def _of_solution(first: Played, second: Played) -> list[Refusal]:
    if first.outcome != second.outcome:
        both = f"{first.outcome:g}, then {second.outcome:g}"
        return [Refusal("varies", f"its solution scores {both}")]
    if first.outcome != 1.0:
        why = first.reason or "no reason given"
        return [Refusal("unsolved", f"its solution scores {first.outcome:g}: {why}")]
    if difference := _difference(first, second):
        return [Refusal("varies", f"its solution, repeated, differs: {difference}")]
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


_KIND: NoteKind = "findings"
Key = tuple[str, str]
"""a domain's name and a split"""


@dataclass(slots=True)
class FindingJournal:
    """The findings of one stage."""

    _writer: NoteWriter[dict[str, Any]]
    _known: dict[Key, dict[str, list[Refusal]]] = field(
        default_factory=dict[Key, dict[str, list[Refusal]]]
    )

    @classmethod
    async def open(cls, checkpoints: Checkpoints) -> Self:
        """Open the journal with what earlier attempts found."""
        journal = cls(NoteWriter(checkpoints, _KIND, _encode, NOTE_SECONDS))
        for piece in await asyncio.to_thread(checkpoints.notes, _KIND, 0, 0):
            for raw in json.loads(piece):
                of = journal._known.setdefault((raw["domain"], raw["split"]), {})
                of[raw["id"]] = [Refusal(cause, text) for cause, text in raw["refusals"]]
        return journal

    def known(self, domain: str, split: Split) -> Mapping[str, Sequence[Refusal]]:
        """Return the findings by problem."""
        return self._known.get((domain, split), {})

    def keep(self, domain: str, split: Split, found: Finding) -> None:
        refusals = [(refusal.cause, refusal.text) for refusal in found.refusals]
        piece = {"domain": domain, "split": split, "id": found.problem.id, "refusals": refusals}
        self._writer.keep(0, piece)

    async def flush(self) -> None:
        """Make all that was kept so far durable, or raise the store's error."""
        await self._writer.flush()


def _encode(pieces: Sequence[dict[str, Any]]) -> bytes:
    return json.dumps(list(pieces)).encode()
