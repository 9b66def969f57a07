"""Turning pydantic's errors into sentences: which field, what is wrong, what was meant."""

from __future__ import annotations

import difflib
import re
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from curricula.prompt_files.spec import PromptFiles
from flows.path import PathStage, form_with
from infra.config import Config
from infra.errors import InputError
from tasks.domain import CurriculumSpec
from tasks.stage import StageSpec

M = TypeVar("M", bound=BaseModel)

WANTED = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    "string_type": "a text",
    "list_type": "a list, each of its items behind a `-` or all in [ ]",
}
"""what a field takes, by the type of pydantic's error where something else is written"""


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean `x`?`, or nothing when no known word is near."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean `{close[0]}`?" if close else ""


def not_a_recipe(name: str) -> str:
    """Return what to say of a file that is no recipe and is not called as one; else nothing."""
    suffix = name.rpartition(".")[2]
    if suffix in ("yaml", "yml"):
        return ""
    return "; a recipe is a YAML file; for rows of data see `tributary preview` and `sft --data`"


def validated(root: type[M], written: Any, where: str = "") -> M:
    """Return what is written as `root` has it. Raises InputError, of which `where` is the
    beginning.
    """
    try:
        return root.model_validate(written)
    except ValidationError as error:
        raise InputError(where + "; ".join(explain(error, root))) from None


def explain(error: ValidationError, root: type[BaseModel]) -> list[str]:
    """One sentence a field, e.g. `path.1.rl.stepz: unknown field; did you mean `steps`?`"""
    return list(explained(error, root).values())


def explained(error: ValidationError, root: type[BaseModel]) -> dict[tuple[Any, ...], str]:
    """The sentences by the place of their field."""
    found: dict[tuple[Any, ...], list[str]] = {}
    for item in error.errors(include_url=False):
        location = _without_members(root, tuple(item["loc"]))
        found.setdefault(location, []).append(_sentence(dict(item), location, root))
    # Of the members of a union, the one whose fields were written is the one that was meant.
    meant = [at for at in found if not any(at == other[: len(at)] != other for other in found)]
    return {
        at: (".".join(_written(root, at)) or _called(root)) + ": "
        + ", or: ".join(dict.fromkeys(found[at]))
        for at in meant
    }  # fmt: skip


def _sentence(item: dict[str, Any], location: tuple[Any, ...], root: type[BaseModel]) -> str:
    kind = item["type"]
    if kind == "extra_forbidden":
        known = _fields_at(root, location[:-1])
        hint = _below(root, location) or nearest(str(location[-1]), known)
        return f"unknown field{hint or '; known here: ' + ', '.join(known)}"
    if kind == "missing":
        return _missing(root, location)
    if kind == "string_pattern_mismatch":
        return f"{characters(item['ctx']['pattern'])}; got {item['input']!r:.80}"
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return _fields_wanted(item["input"], location, _fields_at(root, location))
    if kind == "list_type" and "files" in (known := _fields_at(root, (*location, 0))):
        return _fields_wanted(item["input"], location, known)
    if kind == "union_tag_not_found":
        return f"write its `kind`; got {item['input']!r:.80}"
    if kind == "union_tag_invalid":
        kinds = re.findall(r"'([^']+)'", item["ctx"]["expected_tags"])
        hint = nearest(str(item["ctx"]["tag"]), kinds)
        return f"`kind` is one of {', '.join(kinds)}; got '{item['ctx']['tag']}'{hint}"
    if kind in WANTED and location[-1] == "[key]":
        return f"a key is a text: put it into quotes, got {item['input']!r:.80}"
    if kind in WANTED and item["input"] is None:
        return "has no value; write one, or take the line out"
    if kind in WANTED:
        return f"must be {WANTED[kind]}, got {item['input']!r:.80}"
    message = str(item["msg"]).removeprefix("Value error, ")
    if kind == "value_error":
        return f"{message}"
    expected = re.findall(r"'([^']+)'", str(item.get("ctx", {}).get("expected", "")))
    hint = nearest(str(item["input"]).lower(), expected).removesuffix("?")
    return f"{message[0].lower()}{message[1:]}, got {item['input']!r:.80}{hint}"


def _fields_wanted(given: Any, location: tuple[Any, ...], known: Sequence[str]) -> str:
    """Return what to write in place of one value; of names of files, exactly that."""
    named = [given] if isinstance(given, str) else given
    if "files" in known and isinstance(named, list) and all(isinstance(n, str) for n in named):
        field = next((part for part in reversed(location) if isinstance(part, str)), "")
        return f"write `{field}: {{files: [{', '.join(named)}]}}`; got {given!r:.80}"
    beside = f"; known here: {', '.join(known)}" if known else ""
    return f"write fields below it, as `name: value`; got {given!r:.80}{beside}"


def _missing(root: type[BaseModel], location: tuple[Any, ...]) -> str:
    """Return what is to be written there, where a person cannot know it."""
    if location == ("name",):
        return "is missing; a recipe has a name of its own, e.g. `name: mine`"
    model = _model_of(_at(root, location))
    needed = [n for n, field in model.model_fields.items() if field.is_required()] if model else []
    return f"is missing; it needs {', '.join(needed)}" if needed else "is missing"


def _below(root: type[BaseModel], location: tuple[Any, ...]) -> str:
    """For a field that stands one level too high, e.g. `lr` of an optimizer."""
    *above, name = location
    for field in _fields_at(root, tuple(above)):
        if any(name in _fields_at(root, (*above, field, *item)) for item in ((), (0,))):
            return f"; did you mean `{field}.{name}`?"
    return ""


def _called(model: type[BaseModel]) -> str:
    """Example: `chosen stages`"""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", model.__name__).lower()


def characters(pattern: str) -> str:
    """Return what a name may be, in words, of a pattern such as `^[a-z0-9][a-z0-9-]*$`."""
    if "secret:" in pattern:
        return "is empty or `secret:NAME`, NAME being an environment variable in capital letters"
    marks = "`-` and `_`" if "0-9_-]" in pattern else "`-`"
    begin = "a letter or digit" if "[a-z0-9][" in pattern else "a letter"
    return f"has only small letters, digits and {marks}, and begins with {begin}"


def yaml_fault(error: yaml.MarkedYAMLError) -> str:
    """Example: `line 2, column 3: found undefined alias 'nope'`"""
    mark = error.problem_mark or error.context_mark
    at = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    tab = "; indent with spaces" if "'\\t'" in (error.problem or "") else ""
    return f"{at}{': '.join(filter(None, [error.context, error.problem]))}{tab}"


def _written(model: Any, location: tuple[Any, ...]) -> list[str]:
    """The location as a person wrote it: the tag that chose a part of a union is no field."""
    parts: list[str] = []
    for part in location:
        if _tagged(model, part) is None:
            parts.append(str(part))
        model = _step(model, part)
    return parts


def _without_members(model: Any, location: tuple[Any, ...]) -> tuple[Any, ...]:
    """The location without what pydantic puts into it for each member of a union that it tried."""
    parts: list[Any] = []
    skips = False
    for part in location:
        if skips:
            skips = False
            continue
        parts.append(part)
        model = _step(model, part)
        members = [each for each in typing.get_args(model) if each is not type(None)]
        union = typing.get_origin(model) in (typing.Union, types.UnionType)
        skips = union and len(members) > 1 and not any(_is_tagged(each) for each in members)
    return tuple(parts)


def _is_tagged(member: Any) -> bool:
    model = _model_of(member)
    return model is not None and "kind" in model.model_fields


def _fields_at(model: Any, location: tuple[Any, ...]) -> list[str]:
    """Names of the fields of the model that a location leads to."""
    found = _model_of(_at(model, location))
    return sorted(found.model_fields) if found is not None else []


def _at(annotation: Any, location: tuple[Any, ...]) -> Any:
    for part in location:
        annotation = _step(annotation, part)
    return annotation


def _step(annotation: Any, part: Any) -> Any:
    chosen = _tagged(annotation, part)
    if chosen is not None:
        return chosen
    model = _model_of(annotation)
    if model is PathStage:
        model = form_with(str(part))
    if model is CurriculumSpec and part == "options":  # `files` is the one that has a form
        return PromptFiles
    if model is not None:
        field = model.model_fields.get(str(part))
        return None if field is None else field.annotation
    arguments = [each for each in typing.get_args(annotation) if each is not type(None)]
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return next((found for each in arguments if (found := _step(each, part))), None)
    return arguments[-1] if arguments else None


def _tagged(annotation: Any, part: Any) -> type[BaseModel] | None:
    """The member of a union whose `kind` is this part, if it is such a union."""
    members = [m for m in map(_model_of, typing.get_args(annotation)) if m is not None]
    for member in members:
        kind = member.model_fields.get("kind")
        if kind is not None and part in typing.get_args(kind.annotation):
            return member
    return None


def _model_of(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        found = (_model_of(argument) for argument in typing.get_args(annotation))
        return next((model for model in found if model is not None), None)
    return None


def settings_of(kind: type[StageSpec], written: Config | Mapping[str, Any], at: str) -> Any:
    """Read the settings of a kind. Those of the user's own kinds are read here, as only his files
    say what they are. Raises InputError."""
    if isinstance(written, Config):
        return written
    settings: Any = kind.model_fields["settings"].annotation
    try:
        return settings.model_validate(written)
    except ValidationError as error:
        lines = "\n".join(f"  {at}.{line}" for line in explain(error, settings))
        raise InputError(f"the settings have errors:\n{lines}") from None
