"""Services of others that this process waits for, because they are out of reach.

    who asks one ── waiting_for(outage) ──▶ this process's table ──▶ the stage's job says it, once
                                                └─ a rollout worker's news ─▶ the stage's table

A stage that waits for one does not stand still, and ends once the outage passes its bound.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Outage:
    """Example: Outage("https://api.test/v1/chat/completions", "it is busy (503)", 1764.0, 3564.0)

    Times are Unix times."""

    service: str
    why: str
    since: float
    until: float
    """when whoever waits gives up, which ends the stage"""


_waiting: dict[object, Outage] = {}
_told: dict[object, Sequence[Outage]] = {}


@contextmanager
def waiting_for(outage: Outage) -> Generator[None]:
    """Note that this process waits for the service while the block runs."""
    token = object()
    _waiting[token] = outage
    try:
        yield
    finally:
        del _waiting[token]


def told_by(process: object, found: Sequence[Outage]) -> None:
    """Take up what another process, which works for this one, waits for now."""
    if found:
        _told[process] = found
    else:
        _told.pop(process, None)


def outages() -> list[Outage]:
    """Return the outages of now, the oldest of each service."""
    every = [*_waiting.values(), *(each for found in _told.values() for each in found)]
    oldest: dict[str, Outage] = {}
    for outage in sorted(every, key=lambda each: each.since):
        oldest.setdefault(outage.service, outage)
    return list(oldest.values())
