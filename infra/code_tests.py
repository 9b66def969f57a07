"""Tests of a program that answers a problem in one turn, in the forms in which data sets hold them.

asserts    a text, or a list of texts (MBPP), with functions `test_...` (KodCode), or with a
           `check(candidate)` and the `entry_point` that it is called with (HumanEval)
pairs      {"inputs": [...], "outputs": [...]} (APPS, TACO, verl), with `fn_name` calls of that
           function, else standard input and output; `input` and `output` (CodeContests); or a
           list of objects with `input` and `output`
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from infra.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeTests:
    """Asserts, or the pairs of standard input and output."""

    asserts: str = ""
    """Python; names that it uses and nothing defines are the answer's"""
    entry_point: str = ""
    """the one name of the answer's that the asserts use; empty: all that they do not define"""
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """What `read_code_tests` reads as the same tests."""
        if not self.asserts:
            return {"inputs": list(self.inputs), "outputs": list(self.outputs)}
        return {"asserts": self.asserts, "entry_point": self.entry_point}


def read_code_tests(value: Any, entry_point: str = "", setup: str = "") -> CodeTests:
    """The tests that a value holds, also one as JSON text; `setup` is Python that comes before
    asserts. Raises InputError for what is no such form."""
    value = _parsed(value)
    items = cast("list[Any]", value) if isinstance(value, list) else []
    if items and all(isinstance(each, str) for each in items):
        value = "\n".join(items)
    elif items and all(isinstance(each, Mapping) for each in items):
        value = {name: [each.get(name) for each in items] for name in ("input", "output")}
    if isinstance(value, str) and value.strip():
        return CodeTests(asserts="\n".join(filter(None, (setup, value))), entry_point=entry_point)
    if isinstance(value, Mapping):
        given = cast("Mapping[str, Any]", value)
        if "asserts" in given:
            return read_code_tests(given["asserts"], given.get("entry_point") or entry_point, setup)
        if pairs := _pairs(given):
            return pairs
    raise InputError(
        "is no tests: write asserts (a text or a list of texts), or as many `inputs` as `outputs`"
    )


def _pairs(given: Mapping[str, Any]) -> CodeTests | None:
    ins, outs = (given.get(f"{name}s", given.get(name)) for name in ("input", "output"))
    if not isinstance(ins, list) or not isinstance(outs, list):
        return None
    inputs, outputs = cast("list[Any]", ins), cast("list[Any]", outs)
    if not inputs or len(inputs) != len(outputs) or None in [*inputs, *outputs]:
        return None
    if name := given.get("fn_name"):
        if not isinstance(name, str) or not name.isidentifier():
            raise InputError(f"`fn_name`: {name!r:.40} is no name of a function")
        pairs = zip(inputs, outputs, strict=True)
        return CodeTests(
            asserts="\n".join(_call(name, given, wanted) for given, wanted in pairs),
            entry_point=name,
        )
    return CodeTests(inputs=tuple(map(_text, inputs)), outputs=tuple(map(_text, outputs)))


def _call(name: str, given: Any, wanted: Any) -> str:
    """An assert for a call: its arguments are a list, or one JSON value a line; then what is wanted
    is JSON as well. `__same__` is there where the asserts run."""
    if isinstance(given, str):
        try:
            given = [json.loads(line) for line in given.strip().splitlines()]
            wanted = json.loads(wanted) if isinstance(wanted, str) else wanted
        except ValueError as error:
            raise InputError(f"a call of `{name}` is no JSON, one value a line: {error}") from None
    if not isinstance(given, list):
        raise InputError(f"a call of `{name}` has no list of arguments, but {given!r:.40}")
    return f"assert __same__({name}(*{given!r}), {wanted!r})"


def _text(value: Any) -> str:
    """A list holds lines."""
    if isinstance(value, list):
        return "\n".join(map(_text, cast("list[Any]", value)))
    return value if isinstance(value, str) else json.dumps(value)


def _parsed(value: Any) -> Any:
    """What a text holds as JSON, if that is a list or an object; anything else as it is."""
    if not isinstance(value, str) or not value.lstrip().startswith(("{", "[")):
        return value
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return value
    return found if isinstance(found, Sequence | Mapping) else value
