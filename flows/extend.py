"""A recipe that extends another: what it writes is merged into what it extends.

- Mappings are merged key by key, however deep; a value takes the place of a value.
- A list takes the place of a list, and so does a path. A mapping in place of a list changes items
  of it: by position, or by a key that only one item has, e.g. `path: {rl: {steps: 8}}`.
- `hooks` and `data` are added to those of the other.
- `null` takes out what the other has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from infra.errors import InputError

_ADDED = ("hooks", "data")
Place = tuple[Any, ...]


@dataclass(slots=True)
class Merged:
    """A recipe's content, and which file wrote what."""

    data: dict[str, Any] = field(default_factory=dict[str, Any])
    files: dict[Place, str] = field(default_factory=dict[Place, str])
    changes: list[str] = field(default_factory=list[str])
    """`a.b=value` that were applied to it since"""
    names_a_place_here: bool = False
    """whether these name a file as seen from the folder of who typed them"""

    def add(self, data: Mapping[str, Any], file: str) -> None:
        """Merge what a file writes into what those that it extends wrote."""
        for key in _ADDED:
            if isinstance(data.get(key), list) and isinstance(self.data.get(key), list):
                data = {**data, key: [*dict.fromkeys([*self.data[key], *data[key]])]}
        self.data = self._merged(self.data, data, (), file)

    def source_of(self, place: Place) -> str:
        """The change that wrote the field, else the file."""
        for change in reversed(self.changes):
            key = change.partition("=")[0]
            if all(part in map(str, place) for part in key.split(".") if not part.isdigit()):
                return f"--set {key}"
        return self.file_of(place)

    def file_of(self, place: Place) -> str:
        """Which file wrote the field, or the nearest one around it."""
        for length in range(len(place), 0, -1):
            if place[:length] in self.files:
                return self.files[place[:length]]
        return ""

    def _merged(self, old: Any, new: Any, place: Place, file: str) -> Any:
        if isinstance(old, list) and isinstance(new, dict) and new:
            return self._changed(cast("list[Any]", old), cast("dict[Any, Any]", new), place, file)
        if not isinstance(new, dict):
            self._wrote(new, place, file)
            return new
        kept = dict(cast("dict[Any, Any]", old)) if isinstance(old, dict) else {}
        if not kept:
            self._wrote({}, place, file)
        for key, value in cast("dict[Any, Any]", new).items():
            if value is None and key in kept:
                del kept[key]
                self._wrote(None, (*place, key), file)
            else:
                kept[key] = self._merged(kept.get(key), value, (*place, key), file)
        return kept

    def _changed(
        self, items: list[Any], changes: Mapping[Any, Any], place: Place, file: str
    ) -> list[Any]:
        items = list(items)
        for key, change in changes.items():
            at, inner = entry_of(items, key, f"{file}: {'.'.join(map(str, place))}")
            merged = self._merged(
                items[at], {inner: change} if inner else change, (*place, at), file
            )
            items[at] = merged
        return items

    def _wrote(self, value: Any, place: Place, file: str) -> None:
        """Everything at and below a place is this file's."""
        for known in [known for known in self.files if known[: len(place)] == place]:
            del self.files[known]
        self.files[place] = file


def entry_of(items: Sequence[Any], key: Any, what: str) -> tuple[int, str]:
    """Position of an item of a list, and the key that it is known by, if any.

    By its position, or by a key that only one of the items has, e.g. `rl` for a path's only `rl`.
    """
    if str(key).isdigit() and int(key) < len(items):
        return int(key), ""
    found = [at for at, item in enumerate(items) if isinstance(item, dict) and key in item]
    if len(found) == 1:
        return found[0], str(key)
    if found:
        raise InputError(
            f"{what}: {len(found)} items have `{key}`; say which by its position, e.g."
            f" {found[0]}.{key}"
        )
    keys = dict.fromkeys(str(k) for item in items if isinstance(item, dict) for k in item)
    raise InputError(
        f"{what}: `{key}` is no position in a list of {len(items)}, and a key of none of its items"
        + (f", which have {', '.join(keys)}; a list replaces all of it" if keys else "")
    )
