"""Settings as MLflow's params: flat, within its limits."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

LONGEST_KEY, LONGEST_VALUE = 250, 6000
"""characters that MLflow takes (its documentation, "Limits of runs")"""
_NOT_ALLOWED = re.compile(r"[^\w./: -]")
"""in a key"""


def flat_params(settings: Mapping[str, Any]) -> dict[str, str]:
    """Each value under its path, e.g. `settings.optimizer.lr`: `0.001`; what is too long is cut at
    its end. Empty values have no param: in a table they would only widen it."""
    found: dict[str, str] = {}
    for path, value in _leaves("", settings):
        text = value if isinstance(value, str) else json.dumps(value)
        found[_NOT_ALLOWED.sub("_", path)[-LONGEST_KEY:]] = _cut(text)
    return found


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, each in value.items():  # pyright: ignore
            yield from _leaves(f"{path}.{key}" if path else str(key), each)
    elif isinstance(value, list | tuple) and any(isinstance(each, Mapping) for each in value):  # pyright: ignore
        for index, each in enumerate(value):  # pyright: ignore
            yield from _leaves(f"{path}.{index}", each)
    elif value not in (None, "", [], ()):
        yield path, value


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 3]}..."
