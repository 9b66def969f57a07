"""The `general` curriculum: following instructions that deterministic verifiers can check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from curricula.procedural import Family, Procedural
from curricula.writing import bullets, combined, json_object, numbered, repeat, words
from engines.types import Message, Problem


class General(Procedural):
    """Levels: easy (one instruction), medium (two constraints at once), hard (three or four)."""

    name: ClassVar[str] = "general"
    levels: ClassVar[Mapping[str, Sequence[Family]]] = {
        "easy": (repeat, words, numbered),
        "medium": (combined(2, 2), json_object, bullets),
        "hard": (combined(3, 4),),
    }

    def play(self, problem: Problem, plan: Sequence[Message]) -> tuple[Message, ...]:
        return tuple(plan)
