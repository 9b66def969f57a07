"""The base of every pydantic model that a person writes: its numbers, and what it says for its
digest.

Values that a recipe passes through to an engine are checked by a table with the kinds of each field
by name: "int", "str", ..., "=literal"; see `options.json`.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Collection, Iterable, Iterator
from difflib import get_close_matches
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, ClassVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
)
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import core_schema

from infra.errors import InputError

Steps = Annotated[int, Field(gt=0, le=10**7)]
"""optimizer steps; more is a slip of the keyboard"""
PerStep = Annotated[int, Field(gt=0, le=10**6)]
"""samples of one optimizer step"""
Count = Annotated[int, Field(gt=0, le=10**8)]
"""problems, demonstrations or tokens"""
_LARGEST_RATIO = 1e6
"""of two weights of a mix"""


def _stays_below(path: str) -> str:
    if path.startswith("/") or "\0" in path or {"", ".."} & {*path.split("/")}:
        raise ValueError(f"{path!r} leads out of the folder that it is in")
    return path


PathBelow = Annotated[str, AfterValidator(_stays_below)]
"""of a file in a folder that it is written to: whoever named it can reach no other"""


def _is_one_name(name: str) -> str:
    if "/" in name or "\0" in name or name in (".", ".."):
        raise ValueError(f"{name!r} is no name of a file")
    return name


FileName = Annotated[str, AfterValidator(_is_one_name)]
"""what files are called by: whoever gave it can name none in another folder"""


def one_or_more(written: Any) -> Any:
    """Return a list of one for what is written without a list."""
    return [written] if isinstance(written, dict | Config) else written


def require_comparable(weights: Iterable[float]) -> None:
    """Raises ValueError where one of a mix has so much less weight than another that it would
    hardly ever be drawn; 0 is said on purpose."""
    least, *_, most = sorted([weight for weight in weights if weight] * 2) or (1.0, 1.0)
    if most > _LARGEST_RATIO * least:
        raise ValueError(
            f"the weights {most:g} and {least:g} differ by more than {_LARGEST_RATIO:g} times: the"
            " one with less would hardly ever be drawn; correct a weight, or leave it out"
        )


def _fields(schema: Any) -> Iterator[Any]:
    """The fields of a model's schema, below whatever its own validators wrap around them."""
    while schema["type"] != "model-fields":
        schema = schema.get("schema")
        if not isinstance(schema, dict):
            return
    yield from schema["fields"].values()


def _within_default(field: Any) -> Any:
    """Return what holds the schema of a field's value: pydantic wants a default outermost."""
    return field["schema"] if field["schema"]["type"] == "default" else field


def _is_number(schema: Any) -> bool:
    if schema["type"] == "nullable":
        schema = schema["schema"]
    return schema["type"] in ("int", "float")


def _written_as_number(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError(f"must be a number, not the truth value `{str(value).lower()}`")
    if isinstance(value, str) and _reads_as_number(value):
        raise ValueError(f"must be a number, not the text {value!r}; leave the quotes out")
    return value


def _reads_as_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


class _ResultNeutral:
    """Marks a field; pydantic keeps it among the field's metadata."""


RESULT_NEUTRAL = _ResultNeutral()
"""`Annotated[int, RESULT_NEUTRAL]`: the setting changes speed, memory or floating-point order, and
not what comes out. It stays out of every digest"""


def is_result_neutral(field: FieldInfo) -> bool:
    return RESULT_NEUTRAL in field.metadata


@cache
def field_meanings(model: type[BaseModel]) -> dict[str, str]:
    """Read the strings under a model's fields, its bases' among them, from the text of their
    modules."""
    found: dict[str, str] = {}
    for each in reversed(model.__mro__):
        fields = _strings_under_fields(each.__module__).get(each.__qualname__, {})
        found = {name: said for name, said in found.items() if name not in fields} | {
            name: said for name, said in fields.items() if said
        }
    return found


@cache
def _strings_under_fields(module: str) -> dict[str, dict[str, str]]:
    """By class and field; empty where nothing is said."""
    found: dict[str, dict[str, str]] = {}
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (KeyError, OSError, TypeError):  # made at run time, or built in
        return found
    for name, body in _classes(tree, ""):
        found[name] = {}
        for statement, after in pairwise([*body, ast.Pass()]):
            match statement, after:
                case ast.AnnAssign(target=ast.Name(id=of)), ast.Expr(
                    value=ast.Constant(value=str() as said)
                ):
                    found[name][of] = inspect.cleandoc(said)
                case ast.AnnAssign(target=ast.Name(id=of)), _:
                    found[name][of] = ""
                case _:
                    pass
    return found


def _classes(tree: ast.AST, within: str) -> Iterator[tuple[str, list[ast.stmt]]]:
    """(name as Python qualifies it, body)"""
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.ClassDef(name=name, body=body):
                yield within + name, body
                yield from _classes(node, f"{within}{name}.")
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield from _classes(node, f"{within}{name}.<locals>.")
            case _:
                yield from _classes(node, within)


class Config(BaseModel):
    """Strict, immutable, documented by the string under each field.

    A number is written as one and is finite: `true` is no 1 and `"150"` no 150, although Python
    converts them.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False
    )

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: Any, handler: GetCoreSchemaHandler, /
    ) -> core_schema.CoreSchema:
        schema = handler(source)
        for holder in map(_within_default, _fields(schema)):
            if _is_number(holder["schema"]):
                holder["schema"] = core_schema.no_info_before_validator_function(
                    _written_as_number, holder["schema"]
                )
        return schema

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler, /
    ) -> JsonSchemaValue:
        # Not by pydantic's own option, which reads a module's text for each class of it, in every
        # process: half a second where nobody asks for a schema.
        schema = handler(core_schema)
        properties: dict[str, Any] = handler.resolve_ref_schema(schema).get("properties", {})
        for name, said in field_meanings(cls).items():
            if name in properties:
                properties[name].setdefault("description", said)
        return schema

    @property
    def parts(self) -> tuple[str, ...]:
        """`module:attribute` of the code that these settings choose, ours or the user's: it counts
        in the code identity of a stage whose spec holds them, and of no other."""
        return ()


class Found(Config):
    """Results that code found, not settings: their numbers may be NaN or infinite."""

    model_config = ConfigDict(allow_inf_nan=True)


class Choice(Config):
    """One choice among several, with the code that computes it."""

    code: ClassVar[str]
    """`module:attribute`"""

    @property
    def parts(self) -> tuple[str, ...]:
        return (self.code,)


def unknown_option(where: str, name: str, known: Collection[str], of_what: str) -> InputError:
    """Example: "trainer.megatron.num_layer is not a field of ...; did you mean num_layers?"."""
    close = get_close_matches(name, known, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    return InputError(f"{where} is not {of_what}{hint}")


def check_kind(where: str, value: Any, kinds: Iterable[str]) -> None:
    """Raise InputError if `value` is of none of the kinds."""
    allowed = list(kinds)
    if not any(_is_kind(value, kind) for kind in allowed):
        named = " or ".join(kind.removeprefix("=") for kind in allowed)
        raise InputError(f"{where} takes {named}, got {value!r}")


def _is_kind(value: Any, kind: str) -> bool:
    if kind.startswith("="):
        return value == kind[1:]
    if kind == "null":
        return value is None
    if isinstance(value, bool):  # in Python a bool is an int; in a recipe it is not
        return kind == "bool"
    types: dict[str, Any] = {"int": int, "float": int | float, "str": str, "list": list}
    return isinstance(value, types.get(kind, dict))
