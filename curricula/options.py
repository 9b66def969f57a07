"""Checks of a curriculum's options: values come from YAML and may have any type."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from infra.errors import InputError
from infra.hooks import did_you_mean


def check_levels(levels: Sequence[str], allowed: Collection[str]) -> tuple[str, ...]:
    """The chosen levels; raises `InputError` for none, an unknown or a repeated one."""
    names = (levels,) if isinstance(levels, str) else tuple(levels)
    if not names:
        raise InputError(f"`levels` is empty; choose from {', '.join(allowed)}.")
    for name in names:
        check_choice("levels", name, allowed)
    if len(set(names)) < len(names):
        raise InputError(f"`levels` names a level twice: {', '.join(names)}.")
    return names


def check_choice(option: str, value: str, allowed: Collection[str]) -> str:
    if value not in allowed:
        raise InputError(
            f"`{option}`: unknown {value!r}.{did_you_mean(str(value), allowed)} "
            f"Allowed: {', '.join(allowed)}."
        )
    return value


def check_share(option: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise InputError(f"`{option}` must be a share between 0 and 1, not {value!r}.")
    return float(value)


def check_flag(option: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InputError(f"`{option}` must be true or false, not {value!r}.")
    return value


def check_count(option: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"`{option}` must be a whole number of at least 1, not {value!r}.")
    return value
