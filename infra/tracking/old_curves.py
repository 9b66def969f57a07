"""MLflow's curves of runs that ended long ago: thinned in MLflow's own database.

MLflow keeps each point for ever and has no call that removes one. Its last values, parameters, tags
and models are in other tables, and stay.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.stack.database import Database

POINTS = 100
"""of a curve that stay, spread over its steps"""
POINT_BYTES = 252
"""of a point in MLflow's database, with its indexes"""
_WAIT_SECONDS = 60.0
"""for MLflow's server, which writes to the same file"""


@dataclass(frozen=True, slots=True)
class OldCurves:
    """What can go. Example: OldCurves(runs=12, points=1_500_000)"""

    runs: int = 0
    points: int = 0

    @property
    def bytes(self) -> int:
        return self.points * POINT_BYTES


def thin_curves(place: Path | Database, before_ms: int, *, dry: bool) -> OldCurves:
    """Thin the curves of runs that ended before that time (Unix milliseconds), a transaction each;
    unless `dry` their points go."""
    if isinstance(place, Path) and not place.is_file():
        return OldCurves()
    with _connected(place) as database:
        ended = database.rows(
            "SELECT run_uuid FROM runs WHERE end_time IS NOT NULL AND end_time < ?", [before_ms]
        )
        counts = [_thin(database, str(run), dry=dry) for (run,) in ended]
    return OldCurves(sum(map(bool, counts)), sum(counts))


def _thin(database: _Database, run: str, *, dry: bool) -> int:
    """-> points that go"""
    gone = 0
    for key, last in database.rows(
        "SELECT key, MAX(step) FROM metrics WHERE run_uuid = ? GROUP BY key HAVING COUNT(*) > ?",
        [run, 2 * POINTS],
    ):
        every = -(-int(last) // POINTS)
        which = "FROM metrics WHERE run_uuid = ? AND key = ? AND step < ? AND MOD(step, ?) <> 0"
        values = [run, key, int(last), every]
        ((count,),) = database.rows(f"SELECT COUNT(*) {which}", values)
        if count and not dry:
            database.run(f"DELETE {which}", values)
        gone += int(count)
    database.commit()
    return gone


class _Database:
    """SQLite or PostgreSQL, by Python's common interface."""

    def __init__(self, connection: Any, *, is_file: bool) -> None:
        self._connection, self._is_file = connection, is_file

    def rows(self, query: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        return list(self.run(query, values).fetchall())

    def run(self, query: str, values: Sequence[Any]) -> Any:
        cursor = self._connection.cursor()
        cursor.execute(query if self._is_file else query.replace("?", "%s"), values)
        return cursor

    def commit(self) -> None:
        self._connection.commit()


@contextmanager
def _connected(place: Path | Database) -> Generator[_Database]:
    if isinstance(place, Path):
        connection = sqlite3.connect(place, timeout=_WAIT_SECONDS)
        connection.create_function("MOD", 2, lambda a, b: a % b, deterministic=True)
    else:
        connection = place.connect_mlflow()
    try:
        yield _Database(connection, is_file=isinstance(place, Path))
    finally:
        connection.close()
