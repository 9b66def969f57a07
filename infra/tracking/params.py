"""Names and settings as MLflow takes them: keys of metrics, params and tags, and flat params."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

LONGEST_KEY, LONGEST_VALUE = 250, 6000
"""characters that MLflow takes (its documentation, "Limits of runs")"""
_NOT_ALLOWED = re.compile(r"[^\w./: -]")
"""in a key"""


def mlflow_key(name: str) -> str:
    """The name as MLflow takes it, e.g. `acc_1` for `acc@1`: other characters become `_`, one that
    is too long keeps its end. MLflow reads a key as a path, so no part of it may be `..` or empty.
    """
    parts = _NOT_ALLOWED.sub("_", name).split("/")
    key = "/".join("_" if part in ("", ".", "..") else part for part in parts)
    if key.startswith(".."):
        key = f"_{key}"
    return key if len(key) <= LONGEST_KEY else f"_{key[1 - LONGEST_KEY :]}"


class MlflowKeys:
    """MLflow's keys for names, a different one for each."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def of(self, name: str) -> str:
        """The second of two names that would have one key gets a suffix of its own."""
        key = mlflow_key(name)
        if self._names.setdefault(key, name) == name:
            return key
        suffix = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:6]
        return mlflow_key(f"{key}-{suffix}")


def flat_params(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return each value under its path, e.g. `settings.optimizer.lr`: `0.001`; what is too long is
    cut at its end. Empty values have no param: in a table they would only widen it."""
    keys = MlflowKeys()
    found: dict[str, str] = {}
    for path, value in _leaves("", settings):
        text = value if isinstance(value, str) else json.dumps(value)
        found[keys.of(path)] = cut(text, LONGEST_VALUE)
    return found


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _leaves(f"{path}.{key}" if path else str(key), each)
    elif isinstance(value, list | tuple) and any(isinstance(each, Mapping) for each in value):
        for index, each in enumerate(value):
            yield from _leaves(f"{path}.{index}", each)
    elif value not in (None, "", [], ()):
        yield path, value


def cut(text: str, longest: int) -> str:
    """The text, with `...` for its end where it is too long."""
    return text if len(text) <= longest else f"{text[: longest - 3]}..."
