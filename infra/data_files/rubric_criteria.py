"""Criteria by which a row wants its answer to be judged, in the forms in which data sets hold them.

A text; or a list of texts and of objects, each with its text under `criterion`, `description`,
`requirement`, `rubric` or `text`, and perhaps its points under `points`, `weight`, `score` or
`importance` (HealthBench, Rubrics as Rewards, NeMo Gym); one object alone; or such a list as JSON
text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from infra.errors import InputError
from infra.json_text import parse_json

_TEXTS = ("criterion", "description", "requirement", "rubric", "text")
_POINTS = ("points", "weight", "score", "max_points", "importance")


@dataclass(frozen=True, slots=True)
class Criterion:
    """Example: Criterion("Names a doctor.", "5", frozenset({"tags"}))"""

    text: str
    points: str = ""
    """empty: none are named"""
    unread: frozenset[str] = frozenset()
    """further fields that say something"""

    @property
    def line(self) -> str:
        return f"- {self.text}" + (f" (points: {self.points})" if self.points else "")


def read_rubric(value: Any) -> str | list[Criterion]:
    """Return a text as it is. Raises InputError for what is no rubric."""
    if isinstance(value, str):
        held = _written(value)
        return value if held is None else read_rubric(held)
    found = list(_criteria([value] if isinstance(value, Mapping) else value))
    if not found:
        raise InputError("is no rubric: write a text, or a list of texts or of objects")
    return found


def _written(text: str) -> Any:
    """The list or the object that a text holds as JSON; None for any other text."""
    if not text.lstrip().startswith(("[", "{")):
        return None
    try:
        return parse_json(text)
    except (ValueError, RecursionError):
        return None


def _criteria(items: Any) -> Iterator[Criterion]:
    for item in cast("list[Any]", items) if isinstance(items, list) else []:
        fields: dict[str, Any] = item if isinstance(item, dict) else {"text": item}
        name = next((each for each in _TEXTS if fields.get(each)), "")
        text = fields.get(name)
        if not isinstance(text, str) or not text.strip():
            raise InputError(
                f"an item of its rubric has no text under {' or '.join(_TEXTS)}: {item!r:.80}"
            )
        worth = [each for each in _POINTS if fields.get(each) is not None]
        if len(worth) > 1:
            raise InputError(
                f"an item of its rubric has {' and '.join(worth)}; leave one: {item!r:.80}"
            )
        points = fields[worth[0]] if worth else ""
        others = frozenset(n for n in fields if n not in (name, *worth) and _says(fields[n]))
        yield Criterion(text, points if isinstance(points, str) else json.dumps(points), others)


def _says(value: Any) -> bool:
    return value is not None and value != "" and value != [] and value != {}
