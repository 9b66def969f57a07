"""The `reasoning` curriculum: graded arithmetic, solved in steps, answered in a box."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from curricula.arithmetic import addition, chain, counting, maximum, product
from curricula.options import check_flag
from curricula.procedural import Family, Procedural
from engines.types import Message, Problem


class Reasoning(Procedural):
    """Levels: easy (learnable by a model of 600k parameters), medium, hard."""

    name: ClassVar[str] = "reasoning"
    levels: ClassVar[Mapping[str, Sequence[Family]]] = {
        "easy": (addition(2), maximum(3), counting(4, 7)),
        "medium": (addition(3), maximum(5), counting(8, 10)),
        "hard": (chain, product, addition(4), counting(12, 16)),
    }

    def __init__(
        self, *, levels: Sequence[str] = ("easy",), noise: float = 0.0, thinking: bool = True
    ) -> None:
        """With `thinking` the steps are in the reasoning; without it there is only the box."""
        super().__init__(levels=levels, noise=noise)
        self._thinking = check_flag("thinking", thinking)

    def is_thinking(self) -> bool:
        return self._thinking

    def play(self, problem: Problem, plan: Sequence[Message]) -> tuple[Message, ...]:
        if self._thinking:
            return tuple(plan)
        return tuple(replace(turn, reasoning=None) for turn in plan)
