"""Writes the reference pages: every field of a recipe, command and constraint. A hook of mkdocs
adds them to the site.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Iterator
from typing import Any, Literal, Union, get_args, get_origin

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from pydantic.fields import FieldInfo

from flows.command.main import app
from flows.path import PathStage, written_form
from flows.recipe import Recipe
from infra.config import Config, field_meanings
from rewards.constraints.constraints import TAXONOMY
from tasks.stage_kinds import PATH_KINDS

_FIELDS_INTRO = """# Every field of a recipe

This page is made from the code. Read [write a recipe](../recipe.md) for fields by task, and
[paths](../recipe.md) for stages and their order. A stage of a path is written as `kind: settings`.
"""


def recipe_page() -> str:
    """The recipe first, then each kind of stage, then what these hold, each model once."""
    parts = [_FIELDS_INTRO]
    seen: set[type[Config]] = set()
    roots: list[tuple[str, type[Config]]] = [("The recipe", Recipe)]
    roots += [(f"Stage `{kind}`", _settings(kind)) for kind in PATH_KINDS]
    waiting = list(roots)
    while waiting:
        title, model = waiting.pop(0)
        if model in seen:
            continue
        seen.add(model)
        parts.append(_section(title, model))
        waiting += [(f"`{held.__name__}`", held) for held in _held(model) if held not in seen]
    return "\n".join(parts)


def _settings(kind: str) -> type[Config]:
    annotation: Any = written_form(kind).model_fields[kind].annotation
    return annotation


def _section(title: str, model: type[Config]) -> str:
    said = re.sub(r"\s+", " ", (model.__doc__ or "").strip())
    meanings = field_meanings(model)
    rows = [_row(name, field, meanings.get(name, "")) for name, field in model.model_fields.items()]
    table = ["| field | type | default | meaning |", "|---|---|---|---|", *rows]
    anchor = f'<a id="{model.__name__.lower()}"></a>\n'
    return "\n".join([anchor, f"## {title}", "", said, "", *table, ""])


def _row(name: str, field: FieldInfo, meaning: str) -> str:
    default = "required" if field.is_required() else f"`{_default(field)}`"
    said = re.sub(r"\s+", " ", field.description or meaning)
    return f"| `{name}` | {_shown(field.annotation)} | {_escaped(default)} | {_escaped(said)} |"


def _default(field: FieldInfo) -> str:
    value: Any = field.get_default(call_default_factory=True, validated_data={})
    if isinstance(value, Config):
        return "{}" if value == type(value).model_construct() else type(value).__name__
    return "none" if value is None or value == "" else str(value)


def _shown(annotation: Any) -> str:
    """Example: `list` of [`RewardSpec`](#rewardspec)"""
    if annotation is None or annotation is types.NoneType:
        return "none"
    if isinstance(annotation, type) and issubclass(annotation, PathStage):
        return "a stage"
    if isinstance(annotation, type) and issubclass(annotation, Config):
        return f"[`{annotation.__name__}`](#{annotation.__name__.lower()})"
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(_shown(argument) for argument in arguments)
    if origin is not None and hasattr(annotation, "__metadata__"):
        return _shown(arguments[0])
    if origin in (list, tuple, dict):
        held = [_shown(argument) for argument in arguments if argument is not Ellipsis]
        return f"{origin.__name__} of {' to '.join(held)}"
    return f"`{getattr(annotation, '__name__', annotation)}`"


def _held(model: type[Config]) -> Iterator[type[Config]]:
    """The models that its fields hold, in order."""
    for field in model.model_fields.values():
        yield from _models_in(field.annotation)


def _models_in(annotation: Any) -> Iterator[type[Config]]:
    if isinstance(annotation, type) and issubclass(annotation, Config):
        if not issubclass(annotation, PathStage):
            yield annotation
        return
    for argument in get_args(annotation):
        yield from _models_in(argument)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


_COMMANDS_INTRO = """# Every command and option

This page is made from the code. [The command](../cli.md) explains exit codes and outputs.
"""


def command_page() -> str:
    made = app.generate_docs(output_format="markdown", include_hidden=False, heading_level=2)
    return f"{_COMMANDS_INTRO}\n{made}"


_CONSTRAINTS_INTRO = """# Every kind of constraint

This page is made from the code. A reference says e.g. `{"constraints": [{"kind": "word_count",
"at_least": 3}]}`; [domains](../domains.md#instructions) says where it stands.
"""


def constraint_page() -> str:
    """List every kind that the reward `constraints` checks, by what it is about."""
    parts = [_CONSTRAINTS_INTRO]
    for group, kinds in TAXONOMY.items():
        parts += [
            f"## {group.capitalize()}",
            "",
            "| kind | parameters | what holds, or is counted |",
        ]
        parts += ["|---|---|---|"]
        for name, check in kinds.items():
            parameters = [*inspect.signature(check).parameters.values()][1:]
            written = ", ".join(f"`{p.name}`" for p in parameters)
            said = " ".join((check.__doc__ or "").split()).replace("|", "\\|")
            parts.append(f"| `{name}` | {written} | {said} |")
        parts.append("")
    return "\n".join(parts)


PAGES = {
    "reference/recipe.md": recipe_page,
    "reference/command.md": command_page,
    "reference/constraints.md": constraint_page,
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path, page in PAGES.items():
        files.append(File.generated(config, path, content=page()))
    return files
