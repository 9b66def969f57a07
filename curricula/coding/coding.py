"""The `coding` curriculum: repair a small repository with tools, until its tests pass."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, cast

from curricula.coding.repository import BETWEEN, KINDS, Repository, Size, draw_repository
from curricula.procedural import Draft, Family, Procedural, check_choice, check_count
from curricula.worlds import ToolEpisode
from engines.types import Environment, Episode, Message, Problem, Tool, ToolCall
from infra.processes.coroutines import wait_for_program
from infra.repositories import EditRefused, Files, edited, found, listed, pool, report, shortened
from infra.sandbox.python import DEMANDS, Demand, level, require

LIST = Tool("list", "The files of the repository.", {})
READ = Tool("read", "A file.", {"path": "string"}, ("path",))
SEARCH = Tool("search", "Lines with a text.", {"text": "string"}, ("text",))
EDIT = Tool(
    "edit",
    "Replace a text that is in a file once. Tests are protected.",
    {"path": "string", "old": "string", "new": "string"},
    ("path", "old", "new"),
)
TEST = Tool("test", "Run the tests.", {})
TOOLS = (LIST, READ, SEARCH, EDIT, TEST)
PROMPT = "A test fails. Repair the code."
DONE = "done"


def answer(
    call: ToolCall, files: Files, reference: Mapping[str, Any], sandbox: Demand
) -> tuple[str, Files]:
    """Answer a call on a problem with this reference, as `execute` does.

    A `report` in the reference is what the tests say of the repository as it was: then nothing
    runs for it.
    """
    if call.name == TEST.name and "report" in reference and files == reference["files"]:
        return reference["report"], files
    return execute(call, files, reference["protected"], sandbox)


def execute(
    call: ToolCall, files: Files, protected: Collection[str], sandbox: Demand
) -> tuple[str, Files]:
    """Return what the tool answers to a checked call, and the files after it.

    Blocks while tests run.
    """
    given = {name: str(value) for name, value in call.arguments.items()}
    match call.name:
        case "list":
            return shortened(listed(files)), files
        case "read":
            path = given["path"]
            return shortened(files.get(path, f"error: no file {path}")), files
        case "search":
            return shortened(found(files, given["text"])), files
        case "test":
            return report(files, pool(sandbox)), files
        case _:
            try:
                files = edited(files, protected, given["path"], given["old"], given["new"])
            except EditRefused as refused:
                return shortened(f"error: {refused}"), files
            return "ok", files


class CodingEnvironment:
    """Starts episodes of problems whose reference holds `files` and `protected`."""

    def __init__(self, *, max_calls: int, sandbox: Demand) -> None:
        self._max_calls = max_calls
        self._sandbox: Demand = sandbox

    async def start(self, problem: Problem) -> Episode:
        return ToolEpisode(problem, _Repository(problem, self._sandbox), self._max_calls)


class _Repository:
    """The files of one rollout, as its edits leave them."""

    def __init__(self, problem: Problem, sandbox: Demand) -> None:
        self._reference = cast("Any", problem.reference)
        self._files: Files = self._reference["files"]
        self._sandbox: Demand = sandbox

    async def answer(self, call: ToolCall) -> str:
        given = (call, self._files, self._reference, self._sandbox)
        if call.name == TEST.name:
            told, self._files = await wait_for_program(answer, *given)
        else:  # takes microseconds: no thread needed
            told, self._files = answer(*given)
        return told


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
    """Write the turns of somebody who edits before the tests ran, and leaves it at that."""
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
        super().__init__(levels=levels, noise=noise)
        self.set_flawed(hasty)
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
