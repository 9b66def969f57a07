"""Digests: one text for one value, and what of a spec counts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from infra.config import is_result_neutral

NeutralKeys = Mapping[tuple[type[BaseModel], str], Collection[str]]
"""(model, field that passes options through) -> options that do not change the result"""


def canonical_json(value: Any) -> str:
    """One text for one value: sorted keys, no spaces. Raises ValueError on NaN and infinity."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def digest_of(value: Any) -> str:
    """sha256 hex of a value of plain JSON types."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def sha256_of(file: Path) -> str:
    """Read again only when the file changes."""
    state = file.stat()
    return _sha256(file, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=4096)
def _sha256(file: Path, _mtime_ns: int, _size: int) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def content_of(model: BaseModel, neutral_keys: NeutralKeys) -> dict[str, Any]:
    """The model's settings that change a result, as plain JSON types."""
    return _content(model, model.model_dump(mode="json"), neutral_keys)


def _content(value: Any, dumped: Any, neutral_keys: NeutralKeys) -> Any:
    if isinstance(value, BaseModel):
        fields = type(value).model_fields
        settings = {
            name: _of_field(value, name, item, neutral_keys)
            for name, item in dumped.items()
            if not is_result_neutral(fields[name])
        }
        return settings | class_constants(value)
    if isinstance(value, list):
        return [_content(v, d, neutral_keys) for v, d in zip(value, dumped, strict=True)]
    if isinstance(value, dict):
        # JSON's keys are strings, and in the same order.
        return {
            key: _content(v, dumped[key], neutral_keys)
            for key, v in zip(dumped, value.values(), strict=True)
        }
    return dumped


def class_constants(model: BaseModel) -> dict[str, Any]:
    """Return what a class says of all its kind, e.g. `{"needs": ["critic"]}`: a file of settings is
    none of the code. A stage's kind, and where a choice is computed, count by themselves; what a
    stage's path goes on with changes the stages after it."""
    names = sorted(type(model).__class_vars__ - {"code", "kind", "makes", "model_config"})
    values = {name: getattr(model, name) for name in names}
    return {name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}


def _of_field(model: BaseModel, name: str, dumped: Any, neutral_keys: NeutralKeys) -> Any:
    content = _content(getattr(model, name), dumped, neutral_keys)
    left_out = neutral_keys.get((type(model), name), ())
    return {k: v for k, v in content.items() if k not in left_out} if left_out else content
