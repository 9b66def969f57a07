"""Trackers whose threads end with their test, so that none writes to the next test's home."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

from infra.tracking.tracker import Tracker


@contextmanager
def all_trackers_closed(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Close at the end each tracker that was made meanwhile."""
    made: list[Tracker] = []
    begin = Tracker.__init__

    def remembered(self: Tracker, *arguments: Any, **named: Any) -> None:
        begin(self, *arguments, **named)
        made.append(self)

    monkeypatch.setattr(Tracker, "__init__", remembered)
    try:
        yield
    finally:
        for tracker in made:
            tracker.close()
