"""The tests of a row, by which a program that answers it is judged."""

from __future__ import annotations

from typing import Any, cast

from curricula.rows.fields import Fields
from curricula.rows.texts import parsed_object
from engines.types import Json
from infra.code_tests import read_code_tests
from infra.data_files.tally import BadRow, Reason
from infra.errors import InputError

TESTS = "tests"
"""the field of a reference that holds them"""
_COLUMNS = (
    "tests", "test_list", "test", "test_cases", "input_output", "reward_model", "ground_truth",
)  # fmt: skip
_SPLIT = ("public_tests", "private_tests", "generated_tests")
"""of which all count (CodeContests)"""
_PAIR = ("input", "output")


def read_tests(row: Fields, name: str) -> tuple[Json, str]:
    """Those of the named column, else of the first usual one, and its name. Raises BadRow."""
    name = name or row.first(_COLUMNS)
    if name == "reward_model":
        name = "reward_model.ground_truth"
    value, said = (row.column(name), name) if name else _of_splits(row)
    entry, setup = row.get("entry_point"), row.get("test_setup_code")
    imports: Any = row.get("test_imports")
    lines = [*(cast("list[Any]", imports) if isinstance(imports, list) else []), setup]
    before = "\n".join(line for line in lines if isinstance(line, str) and line)
    try:
        tests = read_code_tests(value, entry if isinstance(entry, str) else "", before)
    except InputError as error:
        raise BadRow(Reason.REFERENCE, f"{said}: {error}") from None
    return cast("Json", tests.as_json()), said


def _of_splits(row: Fields) -> tuple[dict[str, list[Any]], str]:
    there = row.among(_SPLIT)
    if not there:
        raise BadRow(
            Reason.REFERENCE,
            "has no tests, which the reward `code` reads; name their column in columns.reference."
            f" They are read from: {', '.join([*_COLUMNS, *_SPLIT])}",
        )
    found: dict[str, list[Any]] = {name: [] for name in _PAIR}
    for split in there:
        held = parsed_object(row.get(split))
        for name in _PAIR:
            found[name] += cast("dict[str, Any]", held).get(name) or []
    return found, " + ".join(there)
