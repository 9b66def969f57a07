"""The fields of the forms that Prefect's page shows for the deployments.

A form submits what it shows. A whole recipe is one field, so that none of its defaults counts as
written. A value is refused in place where the schema can say what is wrong with it; else the flow
fails at once, with the text of `tributary check`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, GetJsonSchemaHandler, WithJsonSchema
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from flows.load import recipe_names
from flows.page.asked import SEED_PATTERN
from flows.page.recipe_list import BY_NAME


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
Changes = str
"""lines `a.b=value`"""
# The page drops a pattern, unless it stands below `allOf`, before it checks what was filled in.
Seed = Annotated[str, Field(json_schema_extra={"allOf": [{"pattern": SEED_PATTERN}]})]
"""digits; an empty number would be sent as null, which no schema of a number takes"""
RunName = Annotated[str, Field(json_schema_extra={"allOf": [{"pattern": "^[a-z0-9-]*$"}]})]
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
Rounds = Annotated[int, Field(ge=1, le=8)]
