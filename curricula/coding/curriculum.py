"""The `coding` curriculum: small repositories with a failing test, to be repaired with tools."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from curricula.coding.environment import CodingEnvironment
from curricula.coding.repository import BETWEEN, KINDS, Repository, Size, draw_repository
from curricula.coding.tools import TOOLS, answer
from curricula.options import check_choice, check_count
from curricula.procedural import Draft, Family, Procedural
from engines.types import Environment, Message, Problem, ToolCall
from infra.repositories.files import Files
from infra.sandbox.python import DEMANDS, Demand, level, require

PROMPT = "A test fails. Repair the code."
DONE = "done"


def _families(size: Size, checks_again: bool = True) -> tuple[Family, ...]:
    """`checks_again`: its demonstrations run the tests once more after the repair."""
    return tuple(_family(kind, size, checks_again) for kind in KINDS)


def _family(kind: str, size: Size, checks_again: bool) -> Callable[[random.Random], Draft]:
    def draw(rng: random.Random) -> Draft:
        repository = draw_repository(rng, kind, size)
        return Draft(
            family=kind,
            prompt=PROMPT,
            content="\n".join(
                f"{name}\n{repository.files[name]}" for name in sorted(repository.files)
            ),
            reference={
                "files": dict(repository.files),
                "protected": list(repository.protected),
                "checks": list(repository.checks),
                "fix": list(repository.fix),
                **({"report": repository.report} if repository.report else {}),
            },
            plan=_plan(repository, checks_again),
            tools=TOOLS,
            flawed=partial(_hasty, repository),
        )

    return draw


def _plan(repository: Repository, checks_again: bool) -> tuple[Message, ...]:
    return _turns(
        ToolCall("test", {}),
        *(ToolCall("read", {"path": path}) for path in repository.opened),
        _edit(repository.fix),
        *([ToolCall("test", {})] if checks_again else []),
    )


def _hasty(repository: Repository) -> tuple[Message, ...]:
    """Of somebody who edits before the tests ran, and leaves it at that."""
    path = repository.guess[0]
    return _turns(ToolCall("read", {"path": path}), _edit(repository.guess))


def _edit(wanted: tuple[str, str, str]) -> ToolCall:
    return ToolCall("edit", dict(zip(("path", "old", "new"), wanted, strict=True)))


def _turns(*calls: ToolCall) -> tuple[Message, ...]:
    """The assistant's, of one call each, and the last word."""
    turns = [Message("assistant", "", tool_calls=(call,)) for call in calls]
    return (*turns, Message("assistant", DONE))


class Coding(Procedural):
    """Levels: tiny (two modules of one function, a short line), easy (two of one), medium (four of
    two), hard (six of three, where no test calls the broken function itself)."""

    name: ClassVar[str] = "coding"
    levels: ClassVar[Mapping[str, Sequence[Family]]] = {
        "tiny": _families(Size(2, 1, is_short=True), checks_again=False),
        "easy": _families(Size(2, 1)),
        "medium": _families(Size(4, 2)),
        "hard": _families(Size(6, 3, is_hidden=True)),
    }

    flaw: ClassVar[str] = "hasty"

    def __init__(
        self,
        *,
        levels: Sequence[str] = ("easy",),
        noise: float = 0.0,
        hasty: float = 0.0,
        max_calls: int = 12,
        sandbox: Demand = "confined",
    ) -> None:
        """`hasty` is the share of demonstrations that edit some module before the tests ran,
        `noise` that of demonstrations with one wrong token; `sandbox` is what the kernel must
        offer before a repository's code runs: `confined`, `full` (every mechanism), or `unsafe`,
        which runs it also where nothing confines."""
        super().__init__(levels=levels, noise=noise, flawed=hasty)
        self._max_calls = check_count("max_calls", max_calls)
        check_choice("sandbox", sandbox, DEMANDS)
        self._sandbox: Demand = sandbox

    def environment(self) -> Environment:
        """Raises `InputError` if code would run without the required confinement."""
        if self._sandbox != "unsafe":
            require(level(), self._sandbox)
        return CodingEnvironment(max_calls=self._max_calls, sandbox=self._sandbox)

    def solution(self, problem: Problem) -> Sequence[Message]:
        """The assistant's turns that repair it."""
        reference: Any = problem.reference
        return _turns(ToolCall("test", {}), _edit(reference["fix"]), ToolCall("test", {}))

    def secrets(self, problem: Problem) -> Sequence[str]:
        """The repaired function, and the repair unless a right function holds it too."""
        reference: Any = problem.reference
        path, old, new = reference["fix"]
        files: Files = reference["files"]
        before = files[path].split(BETWEEN)
        after = files[path].replace(old, new).split(BETWEEN)
        sources = [text for name, text in files.items() if name not in reference["protected"]]
        repair = [] if any(new in text for text in sources) else [new]
        return [*(text for text in after if text not in before), *repair]

    def play(self, problem: Problem, plan: Sequence[Message]) -> tuple[Message, ...]:
        """Each call is really made, also a mistaken one: the tests say what they say to it."""
        reference: Any = problem.reference
        files: Files = reference["files"]
        turns: list[Message] = []
        for turn in plan:
            turns.append(turn)
            for call in turn.tool_calls:
                told, files = answer(call, files, reference, self._sandbox)
                turns.append(Message("tool", told))
        return tuple(turns)
