"""A broken promise of a user's part, as a contract's checks find it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Fault:
    """One broken promise."""

    check: str
    saw: str


def guarded(part: Any, checks: Callable[[Any], Iterator[Fault]]) -> Iterator[Fault]:
    """What the checks find; that the part raised is a fault as well, and the last."""
    try:
        yield from checks(part)
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        yield Fault("runs without raising", f"{type(error).__name__}: {error}")
