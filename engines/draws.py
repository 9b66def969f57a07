"""What a curriculum gives, checked: a user wrote it, and it is asked in the middle of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from engines.draw_faults import demonstration_fault, problem_fault, shared_id
from engines.types import (
    Curriculum,
    Demonstration,
    Problem,
    RowCurriculum,
    Split,
)
from infra.errors import InputError, TributaryError

if TYPE_CHECKING:
    from engines.chat import Chat

T = TypeVar("T")
_TEMPLATE_TOKENS = 1024
"""most that a chat template adds to a prompt, whose tokens are no more than its bytes"""


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
    """As a recipe names it, e.g. `curriculum 'my_words:Words'`."""
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
