"""What differs between two trees of settings, named field by field."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final


class _Missing:
    """A field that one of the two trees does not have."""

    def __repr__(self) -> str:
        return "nothing"


MISSING: Final = _Missing()


@dataclass(frozen=True, slots=True)
class Difference:
    """Example: Difference("experts.agent.path.1.rl.steps", 2, 4)"""

    path: str
    before: Any
    """MISSING where only `after` has the field"""
    after: Any

    def __str__(self) -> str:
        return f"{self.path}: {_shown(self.before)} -> {_shown(self.after)}"


def differences(before: Any, after: Any, path: str = "") -> Iterator[Difference]:
    """Each field once, in the order in which the trees have them."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in dict.fromkeys([*before, *after]):
            below = f"{path}.{key}" if path else str(key)
            yield from differences(before.get(key, MISSING), after.get(key, MISSING), below)
    elif isinstance(before, list) and isinstance(after, list) and _are_by_place(before, after):
        for index, pair in enumerate(zip_longest(before, after, fillvalue=MISSING)):
            yield from differences(*pair, f"{path}.{index}")
    elif before != after:
        yield Difference(path, before, after)


def listed(found: Sequence[Difference], most: int = 8) -> str:
    """Lines for a message; those beyond `most` are counted."""
    more = [f"and {len(found) - most} more"] if len(found) > most else []
    return "\n".join(f"  {line}" for line in [*found[:most], *more])


def _are_by_place(before: Sequence[Any], after: Sequence[Any]) -> bool:
    """Whether lists are compared item by item: of one length, or of stages and the like."""
    if len(before) == len(after):
        return True
    return all(isinstance(item, Mapping) for item in [*before, *after])


def _shown(value: Any) -> str:
    return "nothing" if value is MISSING or value is None else f"{value!r:.60}"
