"""An object whose keys are read by name, and which knows those that nobody asked for.

Nulls that nobody wrote are dropped: a table gives every object the fields of all of them, and null
to those that it does not have; `datasets` writes them into JSONL as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from curricula.rows.texts import parsed_object, text_of
from engines.types import Tool
from infra.data_files.rows import BadRow, Reason, RowWithFaults, without_nulls
from infra.json_text import json_fault

_NOT_A_NUMBER = json_fault(float("nan"))
"""what some programs write where nothing stands"""

_WITH_LENGTH = (str, list, dict)


def is_empty(value: Any) -> bool:
    """Return whether it says nothing: null, what a column of numbers has in its place, no text or
    item.
    """
    if isinstance(value, _WITH_LENGTH):
        return not value
    return value is None or (isinstance(value, float) and value != value)


class Fields:
    """A row, or an object inside it. Example: Fields({"a": 1, "b": 2}, seen) with `seen` a set:
    after `get("a")` and `close()` it holds `b`."""

    __slots__ = ("_faults", "_path", "_read", "_readable", "_said", "_unread", "values")

    def __init__(self, values: Mapping[str, Any], unread: set[str], path: str = "") -> None:
        """`unread`: where the keys go that nobody asks for, each behind the `path`."""
        self._faults: Mapping[str, str] = {}
        if type(values) is RowWithFaults:
            self._faults = values.faults
            values = {name: values[name] for name in values if name not in self._faults}
        self.values = values
        """without those that hold what is no JSON: to read one of these is a fault"""
        self._readable = {name for name, value in values.items() if not is_empty(value)}
        """keys under which something stands that can be read"""
        self._said = self._readable
        """those, and keys under which something stands that is no JSON"""
        if self._faults:
            faults = {name for name, said in self._faults.items() if said != _NOT_A_NUMBER}
            self._said = self._readable | faults
        self._unread = unread
        self._path = path
        self._read: set[str] = set()

    @property
    def names(self) -> list[str]:
        """Return all its keys."""
        return [*self.values, *self._faults]

    @property
    def read(self) -> frozenset[str]:
        return frozenset(self._read)

    def holds(self, name: str) -> bool:
        """Return whether there is such a key; that is not reading it."""
        return name in self.values or name in self._faults

    def has(self, name: str) -> bool:
        """Return whether something that can be read stands there."""
        return name in self._readable

    def among(self, names: Sequence[str]) -> list[str]:
        """The names under which something stands that can be read."""
        if self._readable.isdisjoint(names):  # as nearly always; a list of none costs more
            return []
        return [name for name in names if name in self._readable]

    def get(self, name: str) -> Any:
        """Return what stands under a name; None where nothing does. Raises BadRow where it is no
        JSON.
        """
        if name in self._faults:
            raise BadRow(Reason.COLUMNS, f"{name}: {self._faults[name]}")
        self._read.add(name)
        value = self.values.get(name)
        return None if isinstance(value, float) and value != value else value

    def first(self, names: Sequence[str]) -> str:
        """The first name under which something stands, one that can be read before others; empty
        for none."""
        there = self.among(names) or [name for name in names if name in self._faults]
        return there[0] if there else ""

    def refuse(self, names: Iterable[str], where: str, reason: Reason, advice: str = "") -> None:
        """Raises BadRow if something stands under one of the names that was not read."""
        if self._said.isdisjoint(names):
            return
        if name := next((n for n in names if n not in self._read and n in self._said), ""):
            at = f"{where}: " if where else ""
            raise BadRow(reason, f"{at}has `{name}`, which is not read{advice}")

    def same(self, names: Iterable[str]) -> Any:
        """Return what stands under those of the names that are there; None where none is. Raises
        BadRow where two differ, or where one is no JSON."""
        found = {name: self.get(name) for name in names if self.has(name) or name in self._faults}
        first = next(iter(found), "")
        for name, value in found.items():
            if value != found[first]:
                raise BadRow(
                    Reason.COLUMNS, f"has `{first}` and `{name}`, which differ; leave one out"
                )
        return found.get(first)

    def column(self, name: str) -> Any:
        """The column of a name as a person writes it: `a.b` is inside an object, `a.0` the first
        of a list, and `a+b` are the texts of two. Raises BadRow where the row has none of this
        name."""
        if self.holds(name):
            return self.get(name)
        if "+" in name:
            parts = [self.column(part.strip()) for part in name.split("+")]
            return "\n".join(filter(None, (text_of(p, name) for p in parts)))
        parts = name.split(".")
        for at in range(len(parts) - 1, 0, -1):
            if self.holds(head := ".".join(parts[:at])):
                return _inside(self.get(head), parts[at:], head)
        raise lacking(name, self.names)

    @property
    def is_read(self) -> bool:
        """Return whether somebody has read every key."""
        return not self._faults and self.values.keys() <= self._read

    @property
    def left(self) -> set[str]:
        """Keys under which something stands that nobody has read so far."""
        return self._said - self._read

    def note_unread(self, names: Iterable[str]) -> None:
        """Fields inside what was read, that nobody asked for."""
        self._unread.update(f"{self._path}{name}" for name in names)

    def close(self) -> None:
        """All that is read has been read."""
        for name in self.left:
            self._unread.add(f"{self._path}{name}")


def lacking(name: str, names: Iterable[str], more: str = "") -> BadRow:
    """The error for a row without the column, which has columns of these names."""
    has = ", ".join(map(str, names)) or "none"
    return BadRow(Reason.COLUMNS, f"has no column {name}; it has {has[:200]}{more}")


def _inside(value: Any, path: list[str], where: str) -> Any:
    for step in path:
        value = parsed_object(value)
        if isinstance(value, list) and step.isdecimal():
            items = cast("list[Any]", value)
            if int(step) >= len(items):
                raise BadRow(Reason.COLUMNS, f"{where}: has {len(items)} items; the first is 0")
            value, where = items[int(step)], f"{where}.{step}"
            continue
        if not isinstance(value, dict) or step not in value:
            has = ", ".join(cast("dict[str, Any]", value)) if isinstance(value, dict) else "none"
            raise BadRow(Reason.COLUMNS, f"{where}: has no field {step}; it has {has[:200]}")
        value, where = cast("dict[str, Any]", value)[step], f"{where}.{step}"
    return value


def without_filled_nulls(value: Any, tools: Sequence[Tool]) -> Any:
    """Messages as a row has them, without null arguments in their calls, except where the tool
    declares the parameter and lets it be null. Arguments that are JSON text stay as they are."""
    parameters = {tool.name: _parameters(tool.schema or {}) for tool in tools}
    return _cleaned(value, parameters)


def _cleaned(value: Any, parameters: Mapping[str, Mapping[str, Any]]) -> Any:
    if isinstance(value, list):
        return [_cleaned(each, parameters) for each in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    value = cast("dict[str, Any]", value)
    if all(type(each) is str for each in value.values()):  # as in most messages
        return value
    kept = {
        key: each if isinstance(each, str) else _cleaned(each, parameters)
        for key, each in value.items()
    }
    if isinstance(value.get("arguments"), dict):
        declared = parameters.get(str(value.get("name")), {})
        kept["arguments"] = {
            key: without_nulls(each)
            for key, each in value["arguments"].items()
            if each is not None or _may_be_null(declared.get(key))
        }
    return kept


def _parameters(function: Mapping[str, Any]) -> Mapping[str, Any]:
    described = function.get("parameters")
    found = described.get("properties") if isinstance(described, Mapping) else None
    return cast("Mapping[str, Any]", found) if isinstance(found, Mapping) else {}


def _may_be_null(schema: Any) -> bool:
    """Return whether a JSON schema says so in words of its own."""
    if not isinstance(schema, Mapping):
        return False
    schema = cast("Mapping[str, Any]", schema)
    kinds = schema.get("type")
    if kinds == "null" or (isinstance(kinds, list) and "null" in kinds) or schema.get("nullable"):
        return True
    if None in (schema.get("enum") or ()):
        return True
    choices = [*(schema.get("anyOf") or ()), *(schema.get("oneOf") or ())]
    return any(map(_may_be_null, choices))
