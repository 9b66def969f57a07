"""The problems of a domain of your own, and demonstrations. `recipe.yaml` names the curriculum.

The example: the model asks a warehouse how many pieces it has, and adds what is delivered.

    user: apple +4    model: stock(item="apple")    tool: 3    model: 7

To train on another task, write the three functions of the first part, `answer_call` in
my_environment.py and the reward in my_reward.py. The second part rarely changes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count as count_from
from itertools import islice
from typing import Any

from my_environment import MyEnvironment, answer_call

from curricula.splits import split_of
from engines.types import Demonstration, Message, Problem, Split, Tool, ToolCall

# 1. Your task

ITEMS = (
    *("apple", "bag", "bread", "cup", "drum", "egg", "fan", "glove"),
    *("hat", "jar", "lamp", "pen", "rope", "soap", "tea", "wool"),
)
STOCK = Tool("stock", "How many pieces of an item there are.", {"item": "string"}, ("item",))


def draw(rng: random.Random) -> Problem:
    """Return a problem; its id comes later. `reference` is plain JSON that only tool and reward
    see.
    """
    item, delivered, stock = rng.choice(ITEMS), rng.randrange(10), rng.randrange(10)
    return Problem(
        id="",
        domain="my-domain",  # as in the recipe
        messages=(Message("user", f"{item} +{delivered}"),),
        reference={"item": item, "stock": stock, "answer": str(stock + delivered)},
        tools=(STOCK,),
    )


def solve(problem: Problem) -> tuple[Message, ...]:
    """Return how the problem is solved, tool results included. Without tools: one assistant
    message.
    """
    known: Any = problem.reference
    call = ToolCall("stock", {"item": known["item"]})
    return (
        Message("assistant", "", tool_calls=(call,)),
        Message("tool", answer_call(problem, call)),
        Message("assistant", known["answer"]),
    )


def spoil(turns: tuple[Message, ...], rng: random.Random) -> tuple[Message, ...]:
    """Return a demonstration with a wrong end. Real demonstrations have mistakes too: RL unlearns
    them.
    """
    return (*turns[:-1], replace(turns[-1], content=str(rng.randrange(19))))


# 2. How a stage asks for it


class MyDomain:
    """The curriculum: problems of four splits that share none, and demonstrations."""

    def __init__(self, noise: float = 0.0) -> None:
        """`noise`: share of spoiled demonstrations; the recipe sets it under `options`."""
        self._noise = noise

    def problems(self, split: Split, count: int, seed: int, start: int = 0) -> Sequence[Problem]:
        return list(islice(self._positions(split, seed, start), count))

    def demonstrations(self, count: int, seed: int) -> Sequence[Demonstration]:
        return [self._demonstrate(problem) for problem in self.problems("sft", count, seed)]

    def environment(self) -> MyEnvironment:
        return MyEnvironment()

    def _demonstrate(self, problem: Problem) -> Demonstration:
        turns, rng = solve(problem), random.Random(f"demonstration/{problem.id}")
        return Demonstration(problem, spoil(turns, rng) if rng.random() < self._noise else turns)

    def _positions(self, split: Split, seed: int, start: int) -> Iterator[Problem]:
        """Problems from a position on. What is drawn depends on split, seed and position alone."""
        seen: set[str] = set()
        for position in count_from(0 if split == "heldout" else start):
            id = f"my-domain/{split}/{seed}/{position}"
            problem = self._draw(split, random.Random(id), seen)
            if split == "heldout":  # no held-out problem counts twice
                seen.add(content(problem))
            if position >= start:
                yield replace(problem, id=id)

    def _draw(self, split: Split, rng: random.Random, seen: set[str]) -> Problem:
        for _ in range(2_000):
            problem = draw(rng)
            if split_of(content(problem)) == split and content(problem) not in seen:
                return problem
        raise ValueError(f"`draw` has no more than {len(seen)} different problems for {split}")


def content(problem: Problem) -> str:
    """Return what makes two problems the same problem: it decides the split."""
    return f"{problem.messages} {problem.reference}"
