"""Has an environment take the turns of a demonstration."""

from __future__ import annotations

from typing import Any

from engines.types import AssistantTurn, Demonstration, Message, ProtocolBreak, Step
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
