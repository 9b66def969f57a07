"""Describes the forms of Prefect's page and reads what a person asks in them: a recipe by name or
in full, changes, models. Imports no Prefect.

A form submits what it shows. A whole recipe is one field, so that none of its defaults counts as
written. A value is refused in place where the schema can say what is wrong with it; else the flow
fails at once, with the text of `tributary check`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    Field,
    GetJsonSchemaHandler,
    WithJsonSchema,
    field_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from flows.catalog import FLOWS
from flows.explain import nearest, validated
from flows.load import (
    is_name,
    load_recipe,
    parse_lines,
    read_recipe,
    recipe_from_text,
    recipe_from_tree,
    recipe_names,
)
from flows.page.prefect_app import FORMATS, RUN_NAME, SEED
from flows.post_train import written
from flows.recipe import Recipe
from flows.running.chosen_stages import ChosenStages
from flows.running.prefect_api import PrefectApi
from flows.running.records import RunHead
from infra.config import Config
from infra.errors import InputError

BY_NAME = "by name"
"""title of the list in a form's schema"""
Changes = str
"""lines `a.b=value`"""
# A format's name is what the page says: "'one' is not a 'number of at most 18 digits'". It drops
# one that does not stand below `allOf` before it checks what was filled in.
Seed = Annotated[str, Field(json_schema_extra={"allOf": [{"format": SEED}]})]
"""digits; an empty number would be sent as null, which no schema of a number takes"""
RunName = Annotated[str, Field(json_schema_extra={"allOf": [{"format": RUN_NAME}]})]
Models = Annotated[
    Any,
    WithJsonSchema(
        {
            "anyOf": [
                {"title": "one a line", "type": "string", "pattern": "="},
                {"title": "as JSON", "type": "object", "additionalProperties": {"type": "string"}},
            ]
        }
    ),
]
"""lines `NAME=FOLDER`"""
Stages = Annotated[
    Any,
    WithJsonSchema(
        {
            "anyOf": [
                {"title": "one a line", "type": "string"},
                {"title": "as JSON", "type": "object"},
            ]
        }
    ),
]
"""lines `until=STAGE`. One box, so that Submit and what it finds wrong stand on one screen."""
Rounds = Annotated[int, Field(ge=1, le=8)]


class Asked(Config):
    """Example: Asked(recipe="cpu-smoke", overrides="unified.path.rl.steps=4", seed="1")"""

    recipe: str | dict[str, Any]
    """a name, the YAML of a whole recipe, or its tree"""
    overrides: str = ""
    """changes of fields as lines `a.b=value`"""
    seed: str = ""
    """another seed; empty: the recipe's"""
    name: str = ""
    """of the run"""

    @field_validator("seed")
    @classmethod
    def _is_a_number(cls, seed: str) -> str:
        if not re.fullmatch(FORMATS[SEED], seed):
            raise ValueError(f"write a {SEED}, or nothing for the recipe's; got {seed!r:.80}")
        return seed

    @classmethod
    def of(cls, form: Mapping[str, Any]) -> Asked:
        """Raises InputError that names the field of the form which is wrong: what asks Prefect
        without its page is not checked there."""
        return validated(cls, form)

    @property
    def by_name(self) -> dict[str, Any]:
        """Return a flow run's parameters, if a name is asked for; else nothing."""
        if isinstance(self.recipe, str) and is_name(self.recipe):
            return self.model_dump(exclude_defaults=True)
        return {}

    def resolved(self) -> Recipe:
        """The recipe. Raises InputError with the text of `tributary check`."""
        changes = parse_lines(self.overrides)
        if self.seed and any(change.startswith("seed=") for change in changes):
            raise InputError("seed: is in its field and among the overrides; keep one of them")
        if self.seed:
            changes.append(f"seed={self.seed}")
        if isinstance(self.recipe, dict):
            return recipe_from_tree(self.recipe, changes)
        if not self.recipe.strip():
            raise InputError("recipe: choose one by its name, or give the whole recipe")
        if is_name(self.recipe):
            return load_recipe(self.recipe, changes)
        return recipe_from_text(self.recipe, changes)


def form_of(head: RunHead) -> dict[str, Any]:
    """The parameters of a flow run that works on a run: what a person would fill in."""
    arguments = written(head.arguments)
    if head.flow == "expert":
        arguments = {"expert": arguments.pop("name"), **arguments}
    if head.flow == "evaluate":
        arguments["models"] = "\n".join(f"{n}={f}" for n, f in arguments["models"].items())
    asked = head.asked if head.asked.get("recipe") in recipe_names() else {"recipe": head.recipe}
    return arguments | asked


def called(form: Mapping[str, Any]) -> str:
    """Return what to call a run that never was on record: its name, else its recipe's."""
    recipe = form["recipe"]
    has_name = isinstance(recipe, str) and is_name(recipe)
    return str(form["name"] or (recipe if has_name else "own recipe"))


def asked_by_command(recipe: str, changes: Sequence[str], name: str) -> dict[str, Any]:
    """Return what a form would say for a command's recipe; nothing for one that has no name there,
    and for changes that name files as seen from here."""
    if recipe not in recipe_names() or Path(recipe).expanduser().is_file():
        return {}
    if changes and read_recipe(recipe, changes)[1].names_a_place_here:
        return {}
    return Asked(recipe=recipe, overrides="\n".join(changes), name=name).by_name


def renew_lists(api: PrefectApi) -> int:
    """Let every form offer the recipes that have a name now; the number of forms that changed.

    Raises InfrastructureError.
    """
    names, changed = recipe_names(), 0
    for flow in FLOWS:
        deployment: dict[str, Any] = api.call("GET", f"/deployments/name/{flow}/{flow}", unknown={})
        schema = deployment.get("parameter_openapi_schema") or {}
        choices = schema.get("properties", {}).get("recipe", {}).get("anyOf", [])
        listed = [choice for choice in choices if choice.get("title") == BY_NAME]
        if any(choice["enum"] != names for choice in listed):
            for choice in listed:
                choice["enum"] = names
            api.call(
                "PATCH", f"/deployments/{deployment['id']}", {"parameter_openapi_schema": schema}
            )
            changed += 1
    return changed


def form_url(api: PrefectApi, ui: str, flow: str) -> str:
    """Return the page where a person fills a flow's form in; empty where it is not deployed."""
    deployment: dict[str, Any] = api.call("GET", f"/deployments/name/{flow}/{flow}", unknown={})
    return f"{ui}/deployments/deployment/{deployment['id']}/run" if deployment else ""


@dataclass(frozen=True, slots=True)
class _RecipeField:
    """A list of names, or a whole recipe. Not field by field: a page of 14,000 pixels, checked for
    seconds."""

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {
            "anyOf": [
                {"title": BY_NAME, "type": "string", "enum": recipe_names()},
                # A name has none of these: a misspelt one is refused.
                {"title": "as YAML", "type": "string", "pattern": "[:{]"},
                {"title": "as JSON", "type": "object"},
            ]
        }


RecipeField = Annotated[Any, _RecipeField()]


def models_of(written: str | Mapping[str, Any]) -> dict[str, str]:
    """HF folders by name. Raises InputError that names the line."""
    if isinstance(written, Mapping):
        pairs = [(str(name), str(folder)) for name, folder in written.items()]
    else:
        pairs = [_pair(line) for line in parse_lines(written)]
    if not pairs:
        raise InputError("models: name at least one as a line NAME=FOLDER")
    found: dict[str, str] = {}
    for name, folder in pairs:
        if not is_name(name):
            raise InputError(
                f"models: `{name}` is no name: small letters, digits and `-`, as in"
                " candidate=/models/one"
            )
        if name in found:
            raise InputError(
                f"models: `{name}` is written twice; give each model a name of its own"
            )
        found[name] = folder
    return found


def _pair(line: str) -> tuple[str, str]:
    name, equals, folder = (part.strip() for part in line.partition("="))
    if not (name and equals and folder):
        raise InputError(f"models: `{line}`: write each model as NAME=FOLDER, one a line")
    return name, folder


_CHOICES = {
    "from": "from_stage", "until": "until_stage", "only": "only_stage", "force": "force_stages",
    "accept_code": "accept_code",
}  # fmt: skip


def stages_of(written: str | Mapping[str, Any]) -> ChosenStages:
    """Return which stages a run does. Raises InputError that names the line."""
    fields: dict[str, Any] = dict(written) if isinstance(written, Mapping) else {}
    for line in parse_lines(written) if isinstance(written, str) else ():
        choice, equals, value = (part.strip() for part in line.partition("="))
        if choice not in _CHOICES or not (equals and value):
            raise InputError(
                f"stages: `{line}`: write from=STAGE, until=STAGE, only=STAGE, force=STAGE or"
                f" accept_code=true, one a line{nearest(choice, _CHOICES)}"
            )
        many = [*fields.get("force_stages", []), value]
        fields[_CHOICES[choice]] = many if choice == "force" else value
    return validated(ChosenStages, fields, "stages: ")
