"""What a curriculum adds so that its problems can be admitted (`tributary admit`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from engines.types import Curriculum, Message, Problem


@runtime_checkable
class Admissible(Curriculum, Protocol):
    """A curriculum that can solve its own problems, and knows what would give them away."""

    def solution(self, problem: Problem) -> Sequence[Message]:
        """The assistant's turns that solve it, with tool calls, the last without."""
        ...

    def secrets(self, problem: Problem) -> Sequence[str]:
        """Texts that neither the prompt nor an answer of a tool may hold before it is solved."""
        ...
