"""The base of every pydantic model that a person writes: its numbers, and what it says for its
digest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler
from pydantic.fields import FieldInfo
from pydantic_core import core_schema

Steps = Annotated[int, Field(gt=0, le=10**7)]
"""optimizer steps; more is a slip of the keyboard"""
PerStep = Annotated[int, Field(gt=0, le=10**6)]
"""samples of one optimizer step"""
Count = Annotated[int, Field(gt=0, le=10**8)]
"""problems, demonstrations or tokens"""

_LARGEST_RATIO = 1e6
"""of two weights of a mix"""


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
    """What holds the schema of a field's value: pydantic wants a default outermost."""
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


class Config(BaseModel):
    """Strict, immutable, documented by the string under each field.

    A number is written as one: `true` is no 1 and `"150"` no 150, although Python converts them.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, validate_default=True
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

    @property
    def parts(self) -> tuple[str, ...]:
        """`module:attribute` of the code that these settings choose, ours or the user's: it counts
        in the code identity of a stage whose spec holds them, and of no other."""
        return ()


class Choice(Config):
    """One choice among several, with the code that computes it."""

    code: ClassVar[str]
    """`module:attribute`"""

    @property
    def parts(self) -> tuple[str, ...]:
        return (self.code,)
