"""Tries a domain's environment, driver and mode on a demonstration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import Any

import numpy as np

from engines.chat import Chat
from engines.rollout.drivers.driver import LiveDomain, build
from engines.rollout.protocols import DRIVERS
from engines.rollout.roller import Roller
from engines.types import (
    AssistantTurn,
    Demonstration,
    Generation,
    Message,
    Problem,
    ProtocolBreak,
    Sampling,
    Status,
    Step,
    TokenIds,
    Transcript,
)
from engines.weight_versions import WeightVersions
from flows.checks.trial.bounded_steps import Attempts
from flows.checks.trial.live_parts import LiveParts
from infra.errors import InputError


def try_environment(live: LiveParts, shown: Demonstration, attempts: Attempts) -> None:
    """The demonstration's own turns, played until the environment says that it is over."""
    if live.environment is None:
        return
    environment, at = live.environment, f"{live.where}.curriculum"
    name = f"the environment of {live.name}"
    limit = live.domain.timeout_s
    fine, episode = attempts.wait(
        at, f"{name}: start()", lambda: environment.start(shown.problem), limit
    )
    if not fine:
        return
    for turn in (t for t in shown.turns if t.role == "assistant"):
        said = AssistantTurn(turn.content, turn.content, turn.reasoning, turn.tool_calls)
        fine, step = attempts.wait(
            at, f"{name}: step()", lambda said=said: _step(episode, said), limit
        )
        if not fine or step.done or not step.messages:
            break
    attempts.wait(at, f"{name}: close()", episode.close, limit)


async def _step(episode: Any, said: AssistantTurn) -> Step:
    try:
        step: Any = await episode.step(said)
    except ProtocolBreak:  # a demonstrator may err
        return Step(done=True)
    messages: Any = getattr(step, "messages", ())
    if not isinstance(step, Step) or not all(isinstance(m, Message) for m in messages):
        name, given = type(episode).__name__, type(step).__name__
        raise InputError(f"step() of {name} gave {given}, not engines.types.Step with Messages")
    return step


_CONTEXT = 1 << 20


@dataclass(frozen=True, slots=True)
class _NoVerdict:
    """Nothing is learned from the trial."""

    reward: float = 0.0
    breakdown: Mapping[str, float] = field(default_factory=dict[str, float])
    reason: str = ""
    turns: tuple[float, ...] = ()
    weights: Mapping[str, float] = field(default_factory=dict[str, float])
    failed: bool = False

    async def judge(self, transcript: Transcript) -> _NoVerdict:
        return self


class _Demonstrator:
    """A policy that says the turns of a demonstration in order, then the last one again."""

    def __init__(self, chat: Chat, shown: Demonstration) -> None:
        self._turns = list(_turns(chat, shown))

    async def generate(self, prompt_ids: TokenIds, sampling: Sampling) -> Generation:
        said = self._turns.pop(0) if len(self._turns) > 1 else self._turns[0]
        ids = np.array(said[: sampling.max_new_tokens], np.int32)
        versions = WeightVersions.of_runs([(0, len(ids))])
        finish = "stop" if len(ids) == len(said) else "length"
        return Generation(ids, np.full(len(ids), -1.0, np.float32), versions, finish)


def _turns(chat: Chat, shown: Demonstration) -> Iterator[Sequence[int]]:
    """Ids of each of the demonstration's turns, as the policy would write them."""
    ids, mask = chat.training_ids(shown.problem, shown.turns)
    place = iter(ids)
    for is_trained, run in groupby(mask):
        turn = list(islice(place, len(list(run))))
        if is_trained:
            yield turn


def try_driver(parts: LiveParts, shown: Demonstration, chat: Chat, attempts: Attempts) -> None:
    """A driver of the user's own, on a demonstration."""
    named, at = parts.domain.driver, f"{parts.where}.driver"
    if named.name in DRIVERS:
        return
    attempts.wait(
        at,
        f"{named.name}: run()",
        lambda: _one_rollout(parts, chat, shown),
        2 * named.timeout_s,
    )


async def _one_rollout(parts: LiveParts, chat: Chat, shown: Demonstration) -> None:
    """Raises InputError that says what the driver did wrong."""
    domain, named = parts.domain, parts.domain.driver
    live = LiveDomain(
        name=domain.name,
        curriculum=parts.curriculum,
        judge=_NoVerdict(),
        driver=build(named.name, named.options, parts.environment, domain.max_turns),
        max_new_tokens=domain.max_new_tokens,
        driver_timeout_s=named.timeout_s,
    )
    policy = _Demonstrator(chat, shown)
    roller = Roller(generate=policy.generate, chat=chat, context_length=_CONTEXT, seed=0)
    (rollout,) = await roller.roll_group(
        live, shown.problem, 1, temperature=1.0, group_id="trial", seed_name="trial"
    )
    at = f"{named.name}: on problem {shown.problem.id}"
    if rollout.status is Status.FAILED:
        raise InputError(f"{at}: {rollout.transcript.reason}")
    if not rollout.num_trained_tokens:
        raise InputError(f"{at}: the policy wrote nothing; call sessions.turn() at least once")


def decide_mode(
    live: LiveParts,
    problems: Sequence[Problem],
    shown: Sequence[Demonstration],
    chat: Chat,
    attempts: Attempts,
) -> list[Demonstration]:
    """The demonstrations as they are trained on and judged; none where the mode is refused."""
    at = f"{live.where}.curriculum"
    every = problems or [demonstration.problem for demonstration in shown]
    asked = Counter(problem.thinking for problem in every)
    lines: list[str] = []
    for choice, count in asked.items():
        try:
            described = chat.mode.describe(choice)
        except InputError as error:
            attempts.problems.append(f"{at}: {live.name}: {error}")
            return []
        lines.append(
            described
            + (f" for {count} of {len(every)} problems" if asked[choice] < len(every) else "")
        )
        if caution := chat.mode.caution(choice):
            attempts.cautions.append(f"{at}: {live.name}: {caution}")
    if lines:
        attempts.notes.append(f"domain {live.domain.name}: {'; '.join(lines)}")
    fine, decided = attempts.call(
        at, "its mode", lambda: [chat.mode.decided_demonstration(each) for each in shown]
    )
    return decided if fine else []
