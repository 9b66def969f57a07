"""Curricula of libraries: `verifiers` and `inspect` pose the problems of a task of theirs, and
`reasoning-gym` those of any dataset of that library, by name.

The driver `library` rolls them out, and the reward `library-score` has the task's own score. A task
is loaded in a process of its own when something of it is first asked for.
Entries of reasoning-gym are drawn by index and go to the split that their question's content
decides.
"""

from __future__ import annotations

import json
import threading
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, cast

from curricula.procedural import check_flag
from curricula.splits import EpochOrders, split_of
from engines.types import Demonstration, Json, Message, Problem, Split
from infra.errors import InputError
from infra.hooks import did_you_mean
from infra.libraries.library import INSPECT, VERIFIERS, Row, load_reasoning_gym, read_rows

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
    """Return what makes two rows the same: all but their number. Many may begin with one prompt."""
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


_looking = threading.Lock()
MAX_DRAWS = 10_000
"""entries without a new member of a split before the dataset counts as exhausted"""


@dataclass(slots=True)
class _Members:
    """The entries of a split that were found so far: whoever draws a later one goes on there."""

    indices: array[int] = field(default_factory=lambda: array("q"))
    seen: set[str] = field(default_factory=set[str])
    """their questions, where none may come again"""
    looked_at: int = 0

    @property
    def newest(self) -> int:
        return self.indices[-1] if self.indices else 0


class ReasoningGym:
    """Judged by the `reasoning-gym` reward; a demonstration is the entry's own answer."""

    name = "reasoning-gym"

    def __init__(
        self,
        *,
        dataset: str,
        config: Mapping[str, Any] | None = None,
        thinking: bool | None = None,
    ) -> None:
        """`config` holds the dataset's own parameters, e.g. {"min_terms": 2, "max_terms": 3}.
        Without `thinking` the model's chat template decides."""
        self._dataset = dataset
        self._config = dict(config or {})
        self._thinking = None if thinking is None else check_flag("thinking", thinking)
        reserved = self._config.keys() & {"seed", "size"}
        if reserved:
            raise InputError(f"`config` may not set {', '.join(sorted(reserved))}: splits do.")
        self._members: dict[tuple[Split, int], _Members] = {}
        self._open(seed=0)

    def problems(self, split: Split, count: int, seed: int, start: int = 0) -> Sequence[Problem]:
        entries = self._entries(split, seed, start, count)
        return [self._problem(entry, index, split, seed) for index, entry in entries]

    def demonstrations(self, count: int, seed: int) -> Sequence[Demonstration]:
        """Raises `InputError` for a dataset whose entries carry no answer."""
        shown: list[Demonstration] = []
        for index, entry in self._entries("sft", seed, 0, count):
            if entry["answer"] is None:
                raise InputError(
                    f"dataset {self._dataset!r} has no answers to show; it can be used for RL only."
                )
            # the library knows answers, not the thoughts that lead there
            reasoning = "so" if self._thinking else None
            answer = Message("assistant", str(entry["answer"]), reasoning=reasoning)
            shown.append(Demonstration(self._problem(entry, index, "sft", seed), (answer,)))
        return shown

    def environment(self) -> None:
        return None

    def _problem(self, entry: Mapping[str, Any], index: int, split: Split, seed: int) -> Problem:
        reference: dict[str, Json] = {
            "dataset": self._dataset,
            "config": cast(Json, self._config),
            "seed": seed,
            "index": index,
        }
        return Problem(
            id=f"{self.name}/{split}/{self._dataset}/{seed}-{index}",
            domain=self.name,
            messages=(Message("user", entry["question"]),),
            reference=reference,
            thinking=self._thinking,
            metadata={"family": self._dataset},
        )

    def _entries(
        self, split: Split, seed: int, start: int, count: int
    ) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Index and entry of the split's members `start`, `start + 1`, ... in order; questions are
        distinct, but for RL, which has no end. Raises InputError where the dataset has no more of
        them."""
        source, members = self._open(seed), self._members.setdefault((split, seed), _Members())
        with _looking:
            while len(members.indices) < start + count:
                question = self._entry(source, members.looked_at)["question"]
                if split_of(question) == split and question not in members.seen:
                    members.indices.append(members.looked_at)
                    if split != "rl":
                        members.seen.add(question)
                elif members.looked_at - members.newest > MAX_DRAWS:
                    raise InputError(
                        f"dataset {self._dataset!r} with this config has no more than "
                        f"{len(members.indices)} distinct {split} questions; ask for fewer."
                    )
                members.looked_at += 1
        for index in members.indices[start : start + count]:
            yield index, source[index]

    def _entry(self, source: Any, index: int) -> Mapping[str, Any]:
        """Raises InputError for a dataset that makes all its entries when it is loaded."""
        try:
            return source[index]
        except IndexError:
            raise InputError(
                f"dataset {self._dataset!r} makes all its entries when it is loaded, and has none"
                f" at {index}; take one that makes each entry when it is asked for"
            ) from None

    def _open(self, seed: int) -> Any:
        library = load_reasoning_gym()
        known = library.factory.DATASETS
        if self._dataset not in known:
            raise InputError(
                f"`dataset`: reasoning-gym has no {self._dataset!r}."
                f"{did_you_mean(self._dataset, known)}"
            )
        try:
            return library.create_dataset(self._dataset, **self._config, seed=seed, size=1)
        except (TypeError, ValueError, AssertionError) as error:
            raise InputError(f"`config` of dataset {self._dataset!r}: {error}") from error
