"""The tests of a row, by which a program that answers it is judged."""

from __future__ import annotations

import ast
from typing import Any, cast

from curricula.rows.fields import Fields
from curricula.rows.texts import parsed_object
from engines.types import Json
from infra.data_files.code_tests import OTHER_CHECKS, CodeTests, read_code_tests
from infra.data_files.rows import BadRow, Reason
from infra.errors import InputError

TESTS = "tests"
"""the field of a reference that holds them"""
_COLUMNS = (
    "tests", "test_list", "test", "test_cases", "input_output", "reward_model", "ground_truth",
)  # fmt: skip
_SPLIT = ("public_tests", "private_tests", "generated_tests")
"""of which all count (CodeContests)"""
_CASES = ("public_test_cases", "private_test_cases")
"""the same as lists (LiveCodeBench)"""
_PAIR = ("input", "output")
_FILES = ("input_file", "output_file")
_NEEDS_MORE = "its output is not simply compared with what programs print; leave such rows out"
_LANGUAGES = (
    "java", "javascript", "js", "typescript", "ts", "c", "c++", "cpp", "c#", "csharp", "go", "rust",
    "ruby", "php", "kotlin", "swift", "scala", "perl", "haskell", "bash", "r", "julia", "lua",
)  # fmt: skip


def read_tests(row: Fields, name: str) -> tuple[Json, str]:
    """Return the tests of the named column, else of the first usual one, and its name. Raises
    BadRow."""
    is_found = not name
    name = name or row.first(_COLUMNS)
    if name == "reward_model":
        name = "reward_model.ground_truth"
    value, said = (row.column(name), name) if name else _of_splits(row)
    for other in row.among((*OTHER_CHECKS, *_FILES)):
        if row.get(other):
            raise BadRow(Reason.REFERENCE, f"has `{other}`: {_NEEDS_MORE}")
    language = row.values.get("language")
    if isinstance(language, str) and language.strip().lower() in _LANGUAGES:
        raise BadRow(Reason.REFERENCE, f"has `language` {language!r}, and only Python runs here")
    tests = _read(row, value, said)
    if is_found:
        for other in row.among(_COLUMNS):
            if other != said.partition(".")[0] and _differs(row, other, tests):
                raise BadRow(
                    Reason.REFERENCE,
                    f"has tests in {said} and {other}, which differ; name those that count in"
                    " columns.reference",
                )
    return cast("Json", tests.as_json()), said


def _read(row: Fields, value: Any, said: str) -> CodeTests:
    """Raises BadRow."""
    setup, imports = row.get("test_setup_code"), row.get("test_imports")
    lines = [*(cast("list[Any]", imports) if isinstance(imports, list) else []), setup]
    entry = _entry(row)
    if entry:
        lines.append(_helpers(row.values.get("prompt"), entry, value))
    before = "\n".join(line for line in lines if isinstance(line, str) and line)
    try:
        return read_code_tests(value, entry, before)
    except InputError as error:
        raise BadRow(Reason.REFERENCE, f"{said}: {error}") from None


def _differs(row: Fields, name: str, tests: CodeTests) -> bool:
    """Return whether other tests than these stand in another column."""
    value = row.values[name]
    if name == "reward_model":
        held = parsed_object(value)
        value = cast("dict[str, Any]", held).get("ground_truth") if isinstance(held, dict) else None
    try:
        return _read(row, value, name) != tests
    except BadRow:
        return False


def _entry(row: Fields) -> str:
    """The function that is tested, by `entry_point` or by the metadata (LiveCodeBench)."""
    entry = row.get("entry_point")
    held = parsed_object(row.values.get("metadata"))
    if not entry and isinstance(held, dict) and "func_name" in held:
        entry = cast("dict[str, Any]", held)["func_name"]
        row.get("metadata")
    return entry if isinstance(entry, str) else ""


def _helpers(prompt: Any, entry: str, asserts: Any) -> str:
    """Return what a prompt that is Python defines beside the function that is to be written, where
    the tests use it (HumanEval/38)."""
    if not isinstance(prompt, str) or not isinstance(asserts, str):
        return ""
    try:
        body, used = ast.parse(prompt).body, ast.walk(ast.parse(asserts))
    except (ValueError, SyntaxError, RecursionError):
        return ""
    names = {node.id for node in used if isinstance(node, ast.Name)}
    defined = [node for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    if not names & {node.name for node in defined if node.name != entry}:
        return ""
    kept = [node for node in body if node not in defined or getattr(node, "name", "") != entry]
    return ast.unparse(ast.Module(kept, []))


def _of_splits(row: Fields) -> tuple[Any, str]:
    if cases := row.among(_CASES):
        held = [parsed_object(row.get(name)) for name in cases]
        if opaque := [n for n, each in zip(cases, held, strict=True) if not isinstance(each, list)]:
            raise BadRow(
                Reason.REFERENCE, f"{opaque[0]}: holds no list of tests; decompress it first"
            )
        return [each for several in held for each in several], " + ".join(cases)
    there = row.among(_SPLIT)
    if not there:
        raise BadRow(
            Reason.REFERENCE,
            "has no tests, which the reward `code` reads; name their column in columns.reference."
            f" They are read from: {', '.join([*_COLUMNS, *_SPLIT, *_CASES])}",
        )
    found: dict[str, list[Any]] = {name: [] for name in _PAIR}
    for split in there:
        held = parsed_object(row.get(split))
        for name in _PAIR:
            found[name] += cast("dict[str, Any]", held).get(name) or []
    return found, " + ".join(there)
