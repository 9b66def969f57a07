"""What a reward reads of a problem's reference, and what a reference lacks.

A reward names the fields in its attribute `reference_keys`, and in `reference_checks` the functions
that raise InputError for a field that it cannot judge by; one without these attributes declares
nothing. A reference that is no object is its field `answer`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from engines.types import Json, Transcript
from infra.errors import InputError
from infra.hooks import resolve
from infra.json_text import is_no_answer
from rewards.built_in_rewards import ASKING, ASKING_OPTIONS, BUILT_IN

ANSWER = "answer"


def reference_keys(name: str, options: Mapping[str, Any]) -> tuple[str, ...]:
    """The fields of a reference that the reward `name` reads: ours, or a user's by dotted path,
    whose module is then imported."""
    if name in ASKING:
        settings: Any = resolve("options", ASKING_OPTIONS[name], {})
        return getattr(settings.model_validate(options), "reference_keys", ())
    declared: Sequence[str] = getattr(resolve("reward", name, BUILT_IN), "reference_keys", ())
    return tuple(declared)


def reference_checks(name: str) -> Mapping[str, str]:
    """Functions that check fields of a reference for one of our rewards, by field."""
    if name not in BUILT_IN or name in ASKING:
        return {}
    return getattr(resolve("reward", name, BUILT_IN), "reference_checks", {})


def reference_fault(reference: Json, keys: Sequence[str]) -> str:
    """Return which of the fields a reference lacks, in words; empty if none. `""` among the fields
    stands for a reference of any kind."""
    fields = _fields(reference)
    if all(_is_missing(name, value) for name, value in fields.items()):
        return "has no reference" if keys else ""
    missing = [key for key in keys if key and _is_missing(key, fields.get(key))]
    if not missing:
        return ""
    given = ", ".join(map(repr, fields))
    return f"has a reference without {', '.join(map(repr, missing))}; it has {given}"


def reference_of(transcript: Transcript, keys: Sequence[str]) -> dict[str, Any]:
    """The reference of the problem, with these fields. Raises InputError where it lacks one."""
    problem = transcript.problem
    if fault := reference_fault(problem.reference, keys):
        raise InputError(
            f"problem {problem.id} {fault}; this reward reads {', '.join(filter(None, keys))} of"
            " it. In your own files, `columns.reference` names the column"
        )
    return _fields(problem.reference)


def answer_texts(references: Iterable[Json]) -> Iterator[str]:
    """The answers that are text, each one of a list."""
    for reference in references:
        answer: Any = _fields(reference).get(ANSWER)
        each: list[Any] = cast("list[Any]", answer) if isinstance(answer, list) else [answer]
        yield from (text for text in each if isinstance(text, str))


def _fields(reference: Json) -> dict[str, Any]:
    return cast("dict[str, Any]", reference) if isinstance(reference, dict) else {ANSWER: reference}


def _is_missing(name: str, value: object) -> bool:
    """Null and an empty text say nothing; NaN stands for null in columns of numbers."""
    if name == ANSWER:
        return is_no_answer(value)
    return value is None or value == "" or value != value
