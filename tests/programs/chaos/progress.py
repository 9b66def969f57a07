"""When a disturbed run wrote work again."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path


class Progress:
    """Notes when the run wrote work into its store (rollouts, checkpoints, artifacts), when it
    claimed an attempt, and when the part that was killed was there again."""

    def __init__(self, store: Path, stage: str) -> None:
        """`stage`: the kind of the one that is disturbed, whose attempts count."""
        self._store, self._stage = store, stage
        self._work: list[float] = []
        self._claims: list[float] = []
        self._back: list[float] = []
        self._is_back: Callable[[], bool] | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Progress:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def after(self, hit: float) -> float:
        """Seconds from the hit to the next work; -1 when none was seen.

        Where the hit cost the attempt, what that one still wrote does not count, nor what was on
        its way before the part was there again.
        """
        begun = max([hit, *self._claims, *self._back])
        return min((t - hit for t in self._work if t > begun), default=-1.0)

    def await_part(self, is_back: Callable[[], bool]) -> None:
        self._is_back = is_back

    def _watch(self) -> None:
        written: set[str] = set()
        claimed: set[str] = set()
        while not self._over.wait(0.1):
            work = self._found("checkpoints") | self._found("artifacts")
            attempts = self._found(f"attempts/{self._stage}")
            claims = {path for path in attempts if path.endswith(".claim.json")}
            if claims - claimed:
                self._claims.append(time.time())
            if work - written:
                self._work.append(time.time())
            written, claimed = work, claims
            if self._is_back is not None and self._is_back():
                self._back.append(time.time())
                self._is_back = None

    def _found(self, folder: str) -> set[str]:
        """All below a folder; unlike a glob, this stands what is removed meanwhile."""
        below = os.walk(self._store / folder)
        return {os.path.join(top, name) for top, *both in below for names in both for name in names}
