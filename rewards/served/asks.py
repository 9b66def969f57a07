"""What a served model gives to a reward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from engines.types import Message, Problem


class AsksModel(Protocol):
    """Each method waits for a place at the model's servers, and raises if they do not answer within
    `timeout_s` from then on, or if what is asked is longer than they take."""

    async def answer(
        self,
        problem: Problem,
        *,
        max_new_tokens: int,
        temperature: float,
        seed: int,
        timeout_s: float,
    ) -> str:
        """What the model says next, without its thought."""
        ...

    async def choice_logprobs(
        self, problem: Problem, choices: Sequence[str], *, timeout_s: float
    ) -> list[float]:
        """Of each choice as the beginning of its answer."""
        ...

    async def outputs(
        self, problem: Problem, turns: Sequence[Message], *, timeout_s: float
    ) -> list[float]:
        """Of a reward model's head, for a conversation that ends with the assistant's turn."""
        ...
