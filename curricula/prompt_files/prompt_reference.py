"""What an answer to a row is compared with."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, cast

from curricula.prompt_files.row_constraints import CONSTRAINTS, read_constraints, with_constraints
from curricula.prompt_files.row_tests import TESTS, read_tests
from curricula.prompt_files.spec import PromptSource
from curricula.rows.asked import ANSWERS
from curricula.rows.fields import Fields, is_empty
from curricula.rows.texts import kind_of, parsed_object
from engines.types import Json
from infra.data_files.rows import BadRow, Reason
from infra.data_files.rubric_criteria import read_rubric
from infra.errors import InputError
from infra.hooks import resolve
from infra.json_text import is_no_answer, last_match, value_text

REFERENCES = (
    "reference", "answer", "ground_truth", "target", "label", "expected_answer", "final_answer",
)  # fmt: skip
ANSWER = "answer"
"""the field that rewards which compare an answer read"""
_ONE_THING = ("reference", "answer", "ground_truth", "expected_answer", "final_answer")
"""names for what an answer has to be, of which a row has one"""
RUBRIC = "rubric"
"""the field that holds how the row wants to be judged"""
_RUBRICS = (RUBRIC, "rubrics")
_WHOLE = (TESTS, CONSTRAINTS)
"""fields with columns of their own, beside which a reference need not hold an answer"""
_INSIDE = {"reward_model": "ground_truth"}
"""columns of objects that hold one (verl)"""
_LOOKS_LIKE = re.compile(r"answer|truth|solution|label|target|gold|^gt$|reward_model|verification")
_LEAST_INT, _MOST_INT = -(2**63), 2**63 - 1
_WORKED = re.compile(r"\s####[ \t]*([^\n]{0,80})\s*\Z")
"""the end of a worked answer as GSM8K has it"""


class Reference(NamedTuple):
    """Example: Reference({"answer": "70"}, "reference answer")"""

    value: Json
    """an object as it is; anything else as `{"answer": ...}`; without one, an empty object"""
    said: str
    """where it is from, for a person"""
    unanswered: str = ""
    """what rewards that compare an answer do not find in it; empty where they can read it"""


def read_reference(row: Fields, source: PromptSource) -> Reference:
    """Raises BadRow where it is empty, and where the rewards read what it lacks."""
    beside, said = _beside(row, source)
    whole = beside.keys() & {*_WHOLE}
    if whole and not set(source.needs) - {*beside, RUBRIC, ""}:
        return Reference(_checked(beside, said, source), said)
    name = _found(row) if whole else source.columns.reference or _found(row)
    if not source.columns.reference and not source.reference_pattern:
        _refuse_two(row)
    if not name:
        if fault := _fault(row, beside, source.needs, "has no reference"):
            raise BadRow(Reason.REFERENCE, fault)
        return Reference(_checked(beside, said, source), said or "no reference")
    value, how = row.column(name), ""
    if is_no_answer(value):
        what = "holds an empty answer" if isinstance(value, list) and value else "is empty"
        raise BadRow(Reason.REFERENCE, f"{name}: {what}")
    if source.reference_pattern:
        value = _matched(value, source.reference_pattern, name)
    elif (worked := _without_work(value)) != value:
        value, how = worked, ", of which what follows #### counts (GSM8K)"
    if value == "":  # what is left of it
        raise BadRow(Reason.REFERENCE, f"{name}: nothing follows #### in it")
    _refuse_written_object(value, name, source.needs)
    value = exact(_with_fields(value, name, source.needs))
    made = cast("dict[str, Json]", value if isinstance(value, dict) else {"answer": value})
    made = _checked(made | beside, name, source)
    has = f"{name}: is an object of {', '.join(made)}"
    if fault := _fault(row, made, source.needs, has):
        raise BadRow(Reason.REFERENCE, fault)
    return Reference(made, f"reference {name}{how}", _fault(row, made, [ANSWER], has))


def _beside(row: Fields, source: PromptSource) -> tuple[dict[str, Json], str]:
    """Fields of a reference that have columns of their own, and which: a rubric, and tests and
    constraints where a reward reads them or no other reference is there. Raises BadRow."""
    found: dict[str, Json] = {}
    said, is_alone = "", not (source.columns.reference or _found(row))
    if CONSTRAINTS in source.needs or is_alone:
        try:
            held, name = read_constraints(row, source.columns.reference)
            found |= exact(held)
            said = f"constraints {name}" if held else ""
        except BadRow:
            if CONSTRAINTS in source.needs:
                raise
    if TESTS in source.needs or (is_alone and not found):
        try:
            found[TESTS], name = read_tests(row, source.columns.reference)
            said = f"tests {name}"
        except BadRow:
            if TESTS in source.needs:
                raise
    kinds = str | list | dict if RUBRIC in source.needs else str | list
    if (name := row.first(_RUBRICS)) and isinstance(row.values.get(name), kinds):
        found[RUBRIC] = exact(row.get(name))
        said = said or f"rubric {name}"
        if RUBRIC in source.needs:
            _note_criteria(row, name)
    return found, said


def _checked(reference: dict[str, Json], where: str, source: PromptSource) -> dict[str, Json]:
    """The reference. Raises BadRow for a field that the reward which reads it cannot judge by."""
    for field, path in source.checks.items():
        try:
            if field in reference:
                resolve("check", path, {})(reference[field])
        except InputError as error:
            raise BadRow(Reason.REFERENCE, f"{where.rpartition(' ')[2]}: {error}") from None
    return reference


def _with_fields(value: Any, name: str, needs: list[str]) -> Any:
    """Return an object with the fields that rewards read, of JSON text or of the column of one of
    them; another value as it is. Raises BadRow."""
    if CONSTRAINTS in needs:
        value = with_constraints(value, name)
    fields = {*needs} - {ANSWER, ""}
    held = parsed_object(value)
    if isinstance(held, dict) and fields & {*cast("dict[str, Any]", held)}:
        return held
    last = name.rpartition(".")[2]
    return {last: held} if last in fields else value


def _note_criteria(row: Fields, name: str) -> None:
    """Notes what a judge is not shown of the row's rubric. Raises BadRow for what is none."""
    try:
        rubric = read_rubric(row.get(name))
    except InputError as error:
        raise BadRow(Reason.REFERENCE, f"{name}: {error}") from None
    for criterion in rubric if isinstance(rubric, list) else []:
        row.note_unread(f"{name}.{field}" for field in criterion.unread)


def _refuse_written_object(value: Any, name: str, needs: list[str]) -> None:
    """Raises BadRow for an object as JSON text of which a field is the answer."""
    held = parsed_object(value) if isinstance(value, str) and ANSWER in needs else None
    inner = cast("dict[str, Any]", held) if isinstance(held, dict) else {}
    if field := next((each for each in inner if _LOOKS_LIKE.search(each.lower())), ""):
        raise BadRow(
            Reason.REFERENCE,
            f"{name}: is an object as JSON text; name the field that an answer is compared with,"
            f" e.g. `columns.reference: {name}.{field}`",
        )


def _found(row: Fields) -> str:
    """The column that holds a reference; empty for none."""
    if name := row.first(REFERENCES):
        return name
    inside = _found_inside(row)
    return inside[0] if inside else ""


def _found_inside(row: Fields) -> tuple[str, Any] | None:
    """Where a column of objects holds a reference, and the reference."""
    for name, field in _INSIDE.items():
        held = parsed_object(row.values.get(name))
        value = cast("dict[str, Any]", held).get(field) if isinstance(held, Mapping) else None
        if not is_empty(value):
            return f"{name}.{field}", value
    return None


def _without_work(value: Any) -> Any:
    """Return what follows the last `####` of a worked answer; anything else as it is."""
    worked = _WORKED.search(f"\n{value}") if isinstance(value, str) else None
    return worked.group(1).strip() if worked else value


def _refuse_two(row: Fields) -> None:
    """Raises BadRow where two columns say what an answer has to be, and differ."""
    there = {name: _without_work(row.values[name]) for name in _ONE_THING if row.has(name)}
    if there and (inside := _found_inside(row)):
        there[inside[0]] = inside[1]
    said = [value_text(v) if isinstance(v, str | int | float) else v for v in there.values()]
    if any(each != said[0] for each in said[1:]):
        raise BadRow(
            Reason.REFERENCE,
            f"has {' and '.join(there)}, which differ; name what an answer is compared with in"
            " columns.reference",
        )


def _fault(row: Fields, reference: Mapping[str, Json], needs: list[str], has: str) -> str:
    """Return which field that rewards read the reference does not have, in words; empty for
    none."""
    are_missing = {ANSWER: is_no_answer}
    lacks = [n for n in needs if n and are_missing.get(n, is_empty)(reference.get(n))]
    if not lacks and (reference or not needs):
        return ""
    wanted = " and ".join(f"`{name}`" for name in lacks) or "one"
    likely = ", ".join(_likely(row.values, lacks))
    hint = f"; columns that look like one: {likely}" if likely else ""
    return f"{has}; the rewards read {wanted} of it. Name its column in columns.reference{hint}"


def _likely(values: Mapping[str, Any], lacks: list[str]) -> Iterator[str]:
    """Names of columns, and of fields inside them, that may hold a reference."""
    for name, value in values.items():
        if is_empty(value):
            continue
        held = parsed_object(value)
        inner = cast("dict[str, Any]", held) if isinstance(held, dict) else {}
        fields = [each for each in inner if _LOOKS_LIKE.search(each.lower()) or each in lacks]
        yield from (f"{name}.{each}" for each in fields)
        if not fields and (name in ANSWERS or _LOOKS_LIKE.search(name.lower())):
            yield name


def exact(value: Any) -> Any:
    """Whole numbers of more than 64 bits as text: not everything that a rollout passes through
    keeps their digits. Raises BadRow for what is no JSON, as dates are."""
    if isinstance(value, dict):
        return {name: exact(each) for name, each in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [exact(each) for each in cast("list[Any]", value)]
    if value is not None and not isinstance(value, str | int | float):
        raise BadRow(
            Reason.COLUMNS,
            f"holds {kind_of(value)}, which is no JSON; write it as text",
        )
    is_large = isinstance(value, int) and not _LEAST_INT <= value <= _MOST_INT
    return str(value) if is_large else value


def _matched(value: Any, pattern: str, name: str) -> str:
    text = value_text(value) if isinstance(value, str | int | float) else str(value)
    found = last_match(re.compile(pattern), text)
    if not found:
        raise BadRow(Reason.REFERENCE, f"{name}: {text[-40:]!r} has no match of {pattern!r}")
    return found
