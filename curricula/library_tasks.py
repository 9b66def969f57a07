"""The curricula `verifiers` and `inspect`: problems that tasks of these libraries pose.

The driver `library` rolls them out, and the reward `library-score` has the task's own score. A task
is loaded in a process of its own when something of it is first asked for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, cast

from curricula.splits import EpochOrders, split_of
from engines.types import Demonstration, Message, Problem, Split
from infra.errors import InputError
from infra.libraries.library import INSPECT, VERIFIERS, Row, read_rows

_NUMBERS = ("id", "example_id")
_ROLES = ("system", "user", "assistant", "tool")


class LibraryTasks:
    """Problems by split and position; an epoch ends when all rows of a split were drawn.

    A problem's id ends with @2 in the second epoch and so on; the held-out split ends with its last
    row. What is held out is never trained on, also where a task has the row in both of its sets.
    """

    library: ClassVar[str]
    in_words: ClassVar[str]

    def __init__(self, name: str, arguments: Mapping[str, Any] | None) -> None:
        if not isinstance(cast(Any, name), str) or not name:
            raise InputError(f"name {self.in_words}, not {name!r}")
        self._name = name
        self._orders = EpochOrders()
        try:
            self._arguments = json.dumps(dict(arguments or {}), sort_keys=True)
        except (TypeError, ValueError) as error:
            raise InputError(f"arguments must be a mapping of JSON values: {error}") from error

    @property
    def left_out(self) -> Iterator[str]:
        """Sentences on the rows that are no problems. They are read when the first is taken."""
        if number := self._rows[1]:
            yield f"{number} rows are left out, as a held-out one is the same"

    def num_rows(self, split: Split) -> int:
        return len(self._rows[0][split])

    def problems(self, split: Split, count: int, seed: int, start: int = 0) -> Sequence[Problem]:
        """Raises InputError for a split without rows, and a held-out one with too few."""
        there = self.num_rows(split)
        if not there and count:
            raise InputError(f"{self.library} {self._name!r} has no row for the split {split!r}")
        if split == "heldout" and start + count > there:
            raise InputError(
                f"{start + count} held-out problems are wanted, but {self.library} {self._name!r}"
                f" has {there}; set evaluate.problems to {there} or less"
            )
        return [self._problem(split, seed, at) for at in range(start, start + count)]

    def demonstrations(self, count: int, seed: int) -> Sequence[Demonstration]:
        """Raises InputError: a task says what is right, not what to write."""
        raise InputError(
            f"{self.library} {self._name!r} shows no solutions; it can be used for rl, distill and"
            " evaluate, not for sft"
        )

    def examples(self, count: int, seed: int) -> Sequence[Demonstration]:
        """None, for the same reason."""
        return ()

    def environment(self) -> None:
        return None

    @cached_property
    def _rows(self) -> tuple[Mapping[Split, Sequence[int]], int]:
        """Positions of the rows by split, and how many are left out."""
        rows = read_rows(self.library, self._name, self._arguments)
        held_out = {_content(row) for row in rows if row.is_held_out}
        found: dict[Split, list[int]] = {"sft": [], "rl": [], "distill": [], "heldout": []}
        seen, left_out = set[str](), 0
        for at, row in enumerate(rows):
            content = _content(row)
            split = _split(row, content)
            is_again = content in seen if split == "heldout" else content in held_out
            if is_again:
                left_out += 1
                continue
            seen.add(content)
            found[split].append(at)
        return found, left_out

    def _problem(self, split: Split, seed: int, position: int) -> Problem:
        rows = self._rows[0][split]
        epoch, place = divmod(position, len(rows))
        order = self._orders.of(split, len(rows), f"{seed}/{split}/{self._name}/{epoch}")
        at = rows[order[place]]
        row = read_rows(self.library, self._name, self._arguments)[at]
        return Problem(
            id=f"{self.library}/{split}/{self._name}/{at}" + (f"@{epoch + 1}" if epoch else ""),
            domain=self.library,
            messages=tuple(_message(role, text) for role, text in row.messages),
            reference={
                "library": self.library,
                "name": self._name,
                "arguments": json.loads(self._arguments),
                "content": row.content,
            },
        )


class Verifiers(LibraryTasks):
    """An environment of verifiers by its name, as `load_environment` has it."""

    library = VERIFIERS
    in_words = "an environment as `environment: my_env`"

    def __init__(self, *, environment: str, arguments: Mapping[str, Any] | None = None) -> None:
        """`arguments`: of its `load_environment`."""
        super().__init__(environment, arguments)


class Inspect(LibraryTasks):
    """A task of Inspect as `module:function`; all of its samples are held out."""

    library = INSPECT
    in_words = "a task as `task: my_tasks:arithmetic`"

    def __init__(self, *, task: str, arguments: Mapping[str, Any] | None = None) -> None:
        """`arguments`: of the function."""
        super().__init__(task, arguments)


def _message(role: str, text: str) -> Message:
    role = "system" if role == "developer" else role
    if role not in _ROLES:
        raise InputError(f"a prompt has a message of {role!r}; known: {', '.join(_ROLES)}")
    return Message(cast(Any, role), text)


def _content(row: Row) -> str:
    """What makes two rows the same: all but their number. Many may begin with one prompt."""
    content = {key: value for key, value in row.content.items() if key not in _NUMBERS}
    return json.dumps(content, sort_keys=True)


def _split(row: Row, content: str) -> Split:
    """By content where the task does not say; the rows of `sft`, which has no solutions, are for
    `rl`."""
    if row.is_held_out:
        return "heldout"
    split = split_of(content)
    keeps = split == "distill" or (split == "heldout" and row.is_held_out is None)
    return split if keeps else "rl"
