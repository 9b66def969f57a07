"""What a curriculum gives, checked: a user wrote it, and it is asked in the middle of a run.

A `Fault` is a broken promise of any part of a user's, as a contract's checks find it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from engines.types import (
    Curriculum,
    Demonstration,
    Message,
    Problem,
    RowCurriculum,
    Split,
    Tool,
    ToolCall,
)
from infra.errors import InputError, TributaryError
from infra.json_text import kind_of_others

if TYPE_CHECKING:
    from engines.chat import Chat


T = TypeVar("T")
_TEMPLATE_TOKENS = 1024
"""most that a chat template adds to a prompt, whose tokens are no more than its bytes"""
_ROLES = ("system", "user", "assistant", "tool")
_JSON_TYPES = ("string", "number", "integer", "boolean", "array", "object")


@runtime_checkable
class BoundedRows(RowCurriculum, Protocol):
    """A curriculum whose rows may turn out to be too long once the model is known."""

    def leave_out(
        self, fault_of: Callable[[Problem], str], num_bytes: int, *, is_judged: bool
    ) -> None:
        """Take rows of more than so many bytes out of which `fault_of` says that they are too long.
        `is_judged`: raises TrainingStopped for too many bad rows."""
        ...


def draw_problems(
    curriculum: Curriculum, split: Split, count: int, seed: int, start: int = 0
) -> list[Problem]:
    """Exactly `count` problems. Raises InputError that names the curriculum and the split."""
    place = f" from position {start}" if start else ""
    what = f"{_name(curriculum)}: problems of split {split!r}{place}"
    given = _asked(what, lambda: curriculum.problems(split, count, seed, start), Problem)
    if len(given) < count:
        raise InputError(
            f"{what}: {count} were asked for, {len(given)} came. A split's sequence must not"
            " end: begin "
            "again when its problems are used up, or ask for fewer in the recipe"
        )
    given = given[:count]
    fault = next(filter(None, map(problem_fault, given)), "") or shared_id(given)
    if fault:
        raise InputError(f"{what}: gave {fault}")
    return given


def without_repeats(problems: Sequence[Problem]) -> list[Problem]:
    """The problems without those that one before them asks as well, under another id: a sequence
    has no end, and begins again after its last problem."""
    first: dict[str, Problem] = {}
    for problem in problems:
        first.setdefault(repr(replace(problem, id="")), problem)
    return list(first.values())


def draw_demonstrations(curriculum: Curriculum, count: int, seed: int) -> list[Demonstration]:
    """At most `count`, and at least one. Raises InputError as `draw_problems`."""
    what = f"{_name(curriculum)}: demonstrations"
    given = _asked(what, lambda: curriculum.demonstrations(count, seed), Demonstration)
    if not given:
        raise InputError(f"{what}: {count} were asked for, none came")
    if fault := next(filter(None, map(demonstration_fault, given)), ""):
        raise InputError(f"{what}: gave {fault}")
    return given


def draw_examples(curriculum: Curriculum, count: int, seed: int) -> list[Demonstration]:
    """At most `count` solved problems to look at, whether or not a stage may train on them; none
    where a user's rows show no solutions. Raises InputError as `draw_problems`."""
    if isinstance(curriculum, RowCurriculum):
        return list(curriculum.examples(count, seed))
    return draw_demonstrations(curriculum, count, seed)


def leave_out_long(
    curriculum: Curriculum, chat: Chat, context: int, *, is_judged: bool = False
) -> None:
    """Take the user's rows out whose prompts leave no room for an answer in the model's context.
    `is_judged`: raises TrainingStopped for too many bad rows."""
    if not isinstance(curriculum, BoundedRows):
        return

    def fault_of(problem: Problem) -> str:
        try:
            return chat.excess(problem, context)
        except Exception:  # a prompt that the template does not write is said elsewhere
            return ""

    curriculum.leave_out(fault_of, max(context - _TEMPLATE_TOKENS, 0), is_judged=is_judged)


def _name(curriculum: object) -> str:
    """Return it as a recipe names it, e.g. `curriculum 'my_words:Words'`."""
    kind = type(curriculum)
    return f"curriculum '{kind.__module__}:{kind.__qualname__}'"


def _asked(what: str, ask: Callable[[], Sequence[T]], kind: type[T]) -> list[T]:
    try:
        given: Any = list(islice(ask(), 1 << 32))
    except (TributaryError, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        raise InputError(f"{what}: raised {type(error).__name__}: {error}") from error
    wrong = [item for item in given if not isinstance(item, kind)]
    if wrong:
        raise InputError(
            f"{what}: gave {type(wrong[0]).__name__} where engines.types.{kind.__name__} is wanted"
        )
    return given


def problem_fault(problem: Problem) -> str:
    """Return what a person put into its fields that cannot be there; empty if it is fine."""
    written: Any = problem  # fields may hold anything that a person put there
    if not isinstance(written.id, str) or not written.id:
        return f"a problem with the id {written.id!r}; it must be a text that is not empty"
    name = f"problem {written.id}"
    if fault := _messages_fault(written.messages):
        return f"{name}: `messages` {fault}"
    if not isinstance(written.tools, tuple) or not all(isinstance(t, Tool) for t in written.tools):
        return f"{name}: `tools` must be a tuple of engines.types.Tool"
    for tool in written.tools:
        if fault := _tool_fault(tool):
            return f"{name}: tool {tool.name} {fault}"
    for field, value in (("reference", written.reference), ("metadata", dict(written.metadata))):
        if fault := json_fault(value):
            return f"{name}: its {field} {fault}"
    return ""


def json_fault(value: object) -> str:
    """Why the value would not be the same after a trip through JSON; empty if it would."""
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        return f"is no JSON: {error}"
    if json.loads(text) != value:
        return (
            "changes when it is written as JSON: use lists instead of tuples, and strings as keys"
        )
    return ""


def demonstration_fault(shown: Demonstration) -> str:
    fault = problem_fault(shown.problem)
    if fault:
        return fault
    turns = _messages_fault(shown.turns)
    return f"problem {shown.problem.id}: the demonstration's `turns` {turns}" if turns else ""


def _messages_fault(messages: object) -> str:
    if not isinstance(messages, tuple) or not messages:
        given = type(messages).__name__ if messages or messages is None else "empty"
        return f"must be a tuple of engines.types.Message, not {given}"
    for message in messages:
        if not isinstance(message, Message):
            return f"holds {type(message).__name__}, not engines.types.Message"
        written: Any = message
        if written.role not in _ROLES:
            return f"has the role {written.role!r}; allowed: {', '.join(_ROLES)}"
        if not isinstance(written.content, str):
            return f"has a content that is {type(written.content).__name__}, not a text"
        for call in written.tool_calls:
            if not isinstance(call, ToolCall):
                return f"has a tool call that is {type(call).__name__}, not engines.types.ToolCall"
            if fault := json_fault(call.arguments):
                return f"calls {call.name} with arguments that are not plain: they {fault}"
    return ""


def _tool_fault(tool: Tool) -> str:
    for name, kind in tool.parameters.items():
        if kind not in _JSON_TYPES:
            return (
                f"gives its parameter {name} the type {kind!r}; allowed: {', '.join(_JSON_TYPES)}"
            )
    if kind_of_others(tool.schema):
        return ""
    unknown = [name for name in tool.required if name not in tool.parameters]
    return f"requires {', '.join(unknown)}, which it does not declare" if unknown else ""


def shared_id(problems: Sequence[Problem]) -> str:
    """Return what is wrong with the first id that two have: their rollouts would become one
    group."""
    first: dict[str, Problem] = {}
    for problem in problems:
        known = first.get(problem.id)
        first[problem.id] = problem
        if known is not None:
            what = "two problems with" if known != problem else "one problem twice, with"
            return (
                f"{what} the id {problem.id!r}: their rollouts would be one group; make every id"
                " unique, e.g. with the position in it"
            )
    return ""


@dataclass(frozen=True, slots=True)
class Fault:
    """One broken promise."""

    check: str
    saw: str


def guarded(part: Any, checks: Callable[[Any], Iterator[Fault]]) -> Iterator[Fault]:
    """Yield what the checks find; that the part raised is a fault as well, and the last."""
    try:
        yield from checks(part)
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        yield Fault("runs without raising", f"{type(error).__name__}: {error}")
