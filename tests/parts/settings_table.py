"""What each kind of stage reads of a domain, and which of its settings run nothing again, read from
the specs: the table of docs/storage.md.

`python -m tests.parts.settings_table` writes it into the page.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from infra.config import is_result_neutral
from tasks.stage_kinds import SPECS

PAGE = Path(__file__).parents[2] / "docs/storage.md"
BEGIN, END = (
    "<!-- settings: made by `python -m tests.parts.settings_table` -->",
    "<!-- end of settings -->",
)
_SHARED = {"curricula": "domain.curriculum", "curriculum": "domain.curriculum"}
"""what a spec calls a part of a domain that it takes alone"""
AGAIN, NOT = "again", "no"
_TOGETHER = {
    "*fleet*": [
        "fleet.max_total_tokens", "fleet.external", "fleet.routing", "fleet.max_turns_per_server"
    ],
    "*trainer*": ["trainer.micro_batch_tokens", "trainer.kernels"],
    "*rollouts*": [
        "name", "curriculum", "driver", "user", "max_new_tokens", "max_turns", "timeout_s"
    ],
}  # fmt: skip
"""settings that many kinds have"""


def table() -> str:
    """Kinds that have the same settings share a line."""
    head = ["kind", "reads of its domain", "settings of its own that run nothing again"]
    kinds: dict[tuple[str, str], list[str]] = {}
    for kind, spec in SPECS.items():
        found = dict(_settings(spec))
        of_domain = [name.removeprefix("domain.") for name in found if name.startswith("domain.")]
        kinds.setdefault((_listed(of_domain), _listed(neutral(kind))), []).append(kind)
    lines = [head, ["---"] * len(head)]
    lines += [[_listed(alike), *settings] for settings, alike in kinds.items()]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def neutral(kind: str) -> list[str]:
    """The settings of a kind that are in no digest."""
    return [name for name, says in _settings(SPECS[kind]) if says == NOT]


def _listed(names: Sequence[str]) -> str:
    """Return names as the page has them, those that many kinds have by one word."""
    said, left = list[str](), list(names)
    for word, together in _TOGETHER.items():
        if {*together} <= {*left}:
            said.append(word)
            left = [name for name in left if name not in together]
    return ", ".join(filter(None, [*said, _quoted(left)]))


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


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
    named = "; ".join(f"{word}: {_quoted(names)}" for word, names in _TOGETHER.items())
    return f"{before}{BEGIN}\n{table()}\n\n{named}.\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(into_page(PAGE.read_text()))
