"""A list of answers of which some are better, by their scores or their ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

from curricula.rows.fields import Fields
from curricula.rows.texts import parsed
from infra.data_files.rows import BadRow, Reason

LISTS = ("responses", "completions", "answers")
_TEXTS = ("response", "answer", "completion", "output", "text")
_SCORES = ("score", "overall_score", "rating")


def read_ranked(
    row: Fields, name: str, scores_in: str, ranks_in: str, unread: set[str]
) -> tuple[dict[str, Any], tuple[tuple[int, int, float], ...], tuple[float, ...], bool]:
    """Return by name the answers of a list; all pairs of one that is better than another, of which
    equal ones make none; what each is worth, and whether that is its score. Raises BadRow."""
    value = _listed(row, name)
    items = cast("list[Any]", value) if isinstance(value, list) else []
    if len(items) < 2:
        raise BadRow(Reason.COLUMNS, f"{name}: is no list of two answers or more")
    path = f"{name}[]."
    objects = [
        Fields(cast("dict[str, Any]", item), unread, path)
        for item in items
        if isinstance(item, Mapping)
    ]
    inside = "" if len(objects) < len(items) else objects[0].first(_TEXTS)
    scores, ranks = None, None
    if not ranks_in:
        scores = _values(row, scores_in, ("scores", "ratings"), objects)
    if scores is None:
        ranks = _values(row, ranks_in, ("ranks",), objects)
    if inside:
        items = [each.column(inside) for each in objects]
        if scores is None and ranks is None:
            key = objects[0].first((*_SCORES, "rank"))
            found = [each.column(key) for each in objects] if key else None
            scores, ranks = (None, found) if key == "rank" else (found, None)
        for each in objects:
            each.close()
    values = scores if scores is not None else ranks
    if values is None:
        raise BadRow(
            Reason.COLUMNS,
            f"{name}: nothing says which answer is better; name columns.scores or columns.ranks",
        )
    if len(values) != len(items):
        raise BadRow(Reason.COLUMNS, f"{name}: {len(items)} answers have {len(values)} numbers")
    worth = [number_of(v, f"the number of {name}[{at}]") for at, v in enumerate(values)]
    if scores is None:
        worth = [-rank for rank in worth]
    margins = scores is not None
    pairs = tuple(
        (i, j, a - b if margins else 0.0)
        for i, a in enumerate(worth)
        for j, b in enumerate(worth)
        if a > b
    )
    if not pairs:
        raise BadRow(Reason.UNDECIDED, f"{name}: no answer is better than another")
    said = {f"{name}[{at}]": item for at, item in enumerate(items)}
    return said, pairs, tuple(worth), margins


def _values(
    row: Fields, name: str, usual: Sequence[str], answers: Sequence[Fields]
) -> list[Any] | None:
    """Return the list of a column, or what stands under a name in each of the answers; None where
    nobody named one and the row has none of the usual ones."""
    if name and not row.holds(name) and answers and all(each.holds(name) for each in answers):
        return [each.get(name) for each in answers]
    name = name or row.first(usual)
    if not name:
        return None
    value = _listed(row, name)
    if not isinstance(value, list):
        raise BadRow(Reason.COLUMNS, f"{name}: is no list of numbers")
    return cast("list[Any]", value)


def _listed(row: Fields, name: str) -> Any:
    """Return a column that a table may hold as JSON text."""
    value = row.column(name)
    return parsed(value, name, Reason.COLUMNS) if isinstance(value, str) else value


def number_of(value: Any, name: str) -> float:
    """Return a number, also as a cell of CSV has it. Raises BadRow."""
    try:
        found = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        found = math.nan
    if not math.isfinite(found):
        raise BadRow(Reason.COLUMNS, f"{name}: {value!r:.40} is no number")
    return found
