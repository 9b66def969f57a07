"""Says whether the base thinks on a domain's problems, and refuses what its template cannot do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from engines.chat import Chat
from engines.types import Demonstration, Problem
from flows.checks.trial.bounded_steps import Attempts
from flows.checks.trial.live_parts import LiveParts
from infra.errors import InputError


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
