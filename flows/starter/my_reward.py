"""The reward of a domain of your own. Edit it, and only RL and what follows it run again."""

from __future__ import annotations

from typing import Any

from engines.types import Transcript, Verdict


def right_answer(transcript: Transcript) -> Verdict:
    """Return a score between 0 and 1; a number or True and False would do. `tributary rollouts`
    shows the reason."""
    known: Any = transcript.problem.reference
    right = transcript.answer.strip() == known["answer"]
    return Verdict(float(right), reason="" if right else f"not {known['answer']}")
