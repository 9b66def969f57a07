"""The base of every pydantic model that a person writes, and what it says for its digest."""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel, ConfigDict
from pydantic.fields import FieldInfo


class _ResultNeutral:
    """Marks a field; pydantic keeps it among the field's metadata."""


RESULT_NEUTRAL = _ResultNeutral()
"""`Annotated[int, RESULT_NEUTRAL]`: the setting changes speed, memory or floating-point order, and
not what comes out. It stays out of every digest"""


def is_result_neutral(field: FieldInfo) -> bool:
    return RESULT_NEUTRAL in field.metadata


class Config(BaseModel):
    """Strict, immutable, documented by the string under each field."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, validate_default=True
    )

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
