"""Which settings run which kinds of stage again, read from the specs: the table of docs/caching.md.

`python -m tests.parts.settings_table` writes it into the page.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from infra.config import is_result_neutral
from tasks.registry import SPECS

PAGE = Path(__file__).parents[2] / "docs/caching.md"
BEGIN, END = (
    "<!-- settings: made by `python -m tests.parts.settings_table` -->",
    "<!-- end of settings -->",
)
_SHARED = {"curricula": "domain.curriculum", "curriculum": "domain.curriculum"}
"""what a spec calls a part of a domain that it takes alone"""
AGAIN, NOT = "again", "no"


def table() -> str:
    rows: dict[str, dict[str, str]] = {}
    for kind, spec in SPECS.items():
        for name, says in _settings(spec):
            rows.setdefault(name, {})[kind] = says
    head = ["setting", *SPECS]
    lines = [head, ["---"] * len(head)]
    lines += [[f"`{name}`", *(row.get(kind, "") for kind in SPECS)] for name, row in rows.items()]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _settings(spec: type[BaseModel]) -> Iterator[tuple[str, str]]:
    """Each setting of a kind, and whether a change of it runs its stages again."""
    for name, field in spec.model_fields.items():
        if name in _SHARED:
            yield _SHARED[name], AGAIN
        elif name == "settings":
            for inner, its_field in _model(field).model_fields.items():
                yield from _setting(inner, its_field)
        elif name == "domains":
            for inner in _model(field).model_fields:
                yield f"domain.{inner}", AGAIN
        else:
            yield name, AGAIN


def _setting(name: str, field: FieldInfo) -> Iterator[tuple[str, str]]:
    """By field, where one of them does not count; as a whole otherwise."""
    models = _models(field.annotation)
    parts = models[0].model_fields if len(models) == 1 else {}
    if any(map(is_result_neutral, parts.values())):
        for inner, its_field in parts.items():
            yield f"{name}.{inner}", NOT if is_result_neutral(its_field) else AGAIN
    else:
        yield name, NOT if is_result_neutral(field) else AGAIN


def _model(field: FieldInfo) -> type[BaseModel]:
    return _models(field.annotation)[0]


def _models(annotation: Any) -> Sequence[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for part in get_args(annotation) for found in _models(part)]


def into_page(text: str) -> str:
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(into_page(PAGE.read_text()))
