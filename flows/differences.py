"""What differs between two trees of settings, named field by field."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_MISSING = object()


def differences(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """Each as `path: before -> after`, e.g. `experts.agent.path.1.rl.steps: 2 -> 4`."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in dict.fromkeys([*before, *after]):
            below = f"{path}.{key}" if path else str(key)
            yield from differences(before.get(key, _MISSING), after.get(key, _MISSING), below)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, pair in enumerate(zip(before, after, strict=True)):
            yield from differences(*pair, f"{path}.{index}")
    elif before != after:
        yield f"{path}: {_shown(before)} -> {_shown(after)}"


def listed(found: list[str], most: int = 8) -> str:
    """Lines for a message; those beyond `most` are counted."""
    more = [f"and {len(found) - most} more"] if len(found) > most else []
    return "\n".join(f"  {line}" for line in [*found[:most], *more])


def _shown(value: Any) -> str:
    return "nothing" if value is _MISSING or value is None else f"{value!r:.60}"
