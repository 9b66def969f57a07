"""What MLflow does not take: kept in the home, counted, and said once.

HOME/spool/mlflow-refused/entries.jsonl    an entry a line, with the reason
HOME/spool/mlflow-refused/<file>           a file of entries that could not be read
"""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from infra.home import home

if TYPE_CHECKING:
    from infra.tracking.spool import Entry

_log = logging.getLogger(__name__)
_SHOWN, _LONGEST_REASON = 5, 300
_ENTRIES = "entries.jsonl"


class Refusals:
    """The refusals of one process; for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        """how many, by what was refused"""
        self._reason = ""
        """the first one"""

    def add(self, entries: Sequence[Entry], reason: Exception) -> None:
        for entry in entries:
            names = [f"the metric {metric.key}" for metric in entry.metrics]
            self._keep({"reason": _words(reason), "entry": asdict(entry)})
            for name in names or [f"the end of a run ({entry.status})"]:
                self.note(name, _words(reason))

    def add_line(self, line: bytes, reason: Exception) -> None:
        self._keep({"reason": _words(reason), "line": line.decode(errors="replace").rstrip("\n")})
        self.note("a line of a spool file", _words(reason))

    def add_file(self, path: Path, reason: Exception) -> None:
        """Move a file away that is in the way of others."""
        try:
            refused_folder().mkdir(parents=True, exist_ok=True)
            path.rename(refused_folder() / path.name)
        except OSError as error:
            _log.warning("%s cannot be moved to %s: %s", path, refused_folder(), error)
        self.note(f"the file {path.name}", _words(reason))

    def note(self, what: str, reason: str) -> None:
        """Count what was refused, or left out before."""
        with self._lock:
            self._counts[what] += 1
            self._reason = self._reason or reason[:_LONGEST_REASON]

    def summary(self) -> str:
        """Return a sentence about all since the last one; empty without any."""
        with self._lock:
            counts, reason = self._counts, self._reason
            self._counts, self._reason = Counter(), ""
        if not counts:
            return ""
        shown = ", ".join(
            f"{what} ({count} times)" if count > 1 else what
            for what, count in counts.most_common(_SHOWN)
        )
        more = f" and {len(counts) - _SHOWN} more" if len(counts) > _SHOWN else ""
        return (
            f"not in MLflow: {shown}{more}: {reason}. All else is; what MLflow refused is kept in"
            f" {refused_folder()}"
        )

    def _keep(self, refused: dict[str, object]) -> None:
        try:
            refused_folder().mkdir(parents=True, exist_ok=True)
            with (refused_folder() / _ENTRIES).open("ab") as file:
                file.write(json.dumps(refused).encode() + b"\n")
        except OSError as error:
            _log.warning("an entry that MLflow refused is not kept: %s", error)


def refused_folder() -> Path:
    return home() / "spool" / "mlflow-refused"


def num_refused() -> tuple[int, int]:
    """Entries, and files of entries, that are kept in this home."""
    files = list(refused_folder().glob("*"))
    others = [file for file in files if file.name != _ENTRIES]
    if len(others) == len(files):
        return 0, len(others)
    with (refused_folder() / _ENTRIES).open("rb") as entries:
        return sum(1 for _ in entries), len(others)


def _words(reason: Exception) -> str:
    return str(reason) or type(reason).__name__
