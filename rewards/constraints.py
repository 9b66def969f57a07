"""The `constraints` reward: 1 if a reply obeys every constraint of its problem, else 0.

A problem's reference holds the list: `{"constraints": [{"kind": "word_count", "exactly": 3}]}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from engines.types import Transcript, Verdict
from rewards import layout_kinds
from rewards.constraint_kinds import KINDS, Check
from rewards.references import reference_of

ALL_KINDS: Mapping[str, Check] = {**KINDS, **layout_kinds.KINDS}


class Constraints:
    """Parts: one 0 or 1 for each constraint, by its kind."""

    reference_keys: ClassVar = ("constraints",)

    async def __call__(self, transcript: Transcript) -> Verdict:
        reference = reference_of(transcript, self.reference_keys)
        constraints: list[dict[str, Any]] = reference["constraints"]
        parts: dict[str, float] = {}
        for constraint in constraints:
            holds = obeys(transcript.answer, constraint)
            parts[constraint["kind"]] = min(parts.get(constraint["kind"], 1.0), float(holds))
        broken = [kind for kind, holds in parts.items() if not holds]
        reason = f"breaks {', '.join(broken)}" if broken else ""
        return Verdict(float(not broken), parts, reason)


def obeys(reply: str, constraint: Mapping[str, Any]) -> bool:
    """Whether a reply obeys one constraint. Raises for an unknown kind or wrong parameters."""
    kind = constraint["kind"]
    if kind not in ALL_KINDS:
        raise ValueError(f"unknown constraint {kind!r}; known: {', '.join(sorted(ALL_KINDS))}")
    parameters = {key: value for key, value in constraint.items() if key != "kind"}
    return ALL_KINDS[kind](reply, **parameters)
