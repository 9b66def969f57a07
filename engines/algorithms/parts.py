"""What the parts of an algorithm share: their settings' base, and how their functions are found.

A part is settings, and a function that computes with them beside them in one file. The function is
found by the `module:attribute` that the class of its settings names: the code of a stage is that of
the parts that its spec names, and of no others. Only functions import torch, for a recipe is read
with these modules.

A form such as Prefect's submits every default that it finds in a schema, and what is written wins
over a preset: so a schema tells it of no default where a preset may have another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema

from infra.config import Choice, Config
from infra.hooks import check_options, resolve

Schema = dict[str, Any]

_NULL: Schema = {"type": "null"}

Fraction = Annotated[float, Field(ge=0, le=1)]

Share = Annotated[float, Field(gt=0, le=1)]

Need = Literal["spread", "batch", "critic", "teachers", "reference", "turns", "components"]
"""what an estimator cannot do without. spread: rewards that differ within a group, so that a group
of equal rewards teaches nothing and fresh problems replace it; batch: other rollouts of the step;
critic: a value of each token; teachers, reference: their logprob of each token (the reference is
the model that the stage started from); turns: where each turn begins, and what it earned;
components: what each reward of the rubric says of each rollout of a group"""


class Part(Config):
    """What a choice is made of; its JSON schema gives a form no default to submit."""

    @model_validator(mode="before")
    @classmethod
    def _leave_out_unwritten(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        fields = cls.model_fields
        return {
            key: value
            for key, value in data.items()
            if key not in fields or not is_unwritten(value, fields[key].default)
        }

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        schema = super().__get_pydantic_json_schema__(core_schema, handler)
        without_defaults(handler.resolve_ref_schema(schema).get("properties", {}))
        return schema


class PartWithCode(Part, Choice):
    """A part that names the code which computes it."""


def custom(kind: str, path: str, options: Mapping[str, Any]) -> Callable[[Any], Any]:
    """The user's function with its options. Raises InputError for a wrong path or option."""
    function = resolve(kind, path, {})
    check_options(kind, path, function, options)
    return partial(function, **options)


def our_part(path: str) -> Callable[..., Any]:
    """One of our functions by `module:attribute`."""
    return resolve("part", path, {})


def with_settings(kind: str, spec: Any) -> Callable[[Any], Any]:
    """The function of a part with its settings, those of a custom one too."""
    if not isinstance(spec, Choice):
        return custom(kind, spec.path, spec.options)
    # Whitening is the same for every advantage, so it is none of theirs.
    settings = {name: value for name, value in spec if name not in ("kind", "whiten")}
    return partial(our_part(spec.code), **settings)


def nullable(properties: Schema, names: Iterable[str]) -> None:
    """Let these properties be null, which is their default: as the preset says."""
    for name in names:
        found = properties[name]
        about = {key: found.pop(key) for key in ("title", "description") if key in found}
        found.pop("default", None)
        found.pop("discriminator", None)
        choices = found.pop("oneOf", None) or found.pop("anyOf", None) or [dict(found)]
        if _NULL not in choices:
            choices = [*choices, _NULL]
        properties[name] = {**about, "anyOf": choices, "default": None}


def without_defaults(properties: Schema) -> None:
    """Leave each property's default to its description. A switch can be null, as a form would show
    one that nobody touched as off; a constant is filled in."""
    for name, found in properties.items():
        if "const" in found:
            found["default"] = found["const"]
            continue
        default = found.pop("default", None)
        if default is not None:
            told = f"Left out: {default}, unless the preset says otherwise"
            found["description"] = "\n".join([*filter(None, [found.get("description")]), told])
        if found.get("type") == "boolean":
            nullable(properties, [name])


def is_unwritten(value: Any, otherwise: Any) -> bool:
    """Return whether a value says no more than its absence, given what holds without it."""
    return value is None and isinstance(otherwise, bool)
