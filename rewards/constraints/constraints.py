"""The `constraints` reward: what a reply must obey, and how each kind of constraint is checked.

A problem's reference holds the list: `{"constraints": [{"kind": "word_count", "exactly": 3}]}`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, NotRequired, Required, cast

import regex
from pydantic import AfterValidator, ConfigDict, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from engines.types import Transcript, Verdict
from infra.errors import InputError
from infra.hooks import did_you_mean
from infra.prose.plain_text import plain
from rewards.constraints.content_kinds import CONTENT_KINDS
from rewards.constraints.count_kinds import COUNT_KINDS
from rewards.constraints.data_kinds import DATA_KINDS
from rewards.constraints.language_kinds import LANGUAGE_KINDS
from rewards.constraints.layout_kinds import LAYOUT_KINDS
from rewards.constraints.mark_kinds import MARK_KINDS
from rewards.constraints.place_kinds import PLACE_KINDS
from rewards.constraints.word_kinds import WORD_KINDS
from rewards.references import reference_of

TAXONOMY: Mapping[str, Mapping[str, Callable[..., bool]]] = {
    "words and letters": WORD_KINDS,
    "length": COUNT_KINDS,
    "form": {**LAYOUT_KINDS, **DATA_KINDS},
    "punctuation and capitals": MARK_KINDS,
    "beginnings and endings": PLACE_KINDS,
    "contents": CONTENT_KINDS,
    "writing system": LANGUAGE_KINDS,
}
"""every kind, by what it is about"""
ALL_KINDS: Mapping[str, Callable[..., bool]] = {
    name: check for kinds in TAXONOMY.values() for name, check in kinds.items()
}

_TO_THE_LETTER = frozenset({*DATA_KINDS, "ascii_only", "plain_latin"})
"""kinds that read a reply as it is written; all others as people do"""
_MEANT = {
    "max": "at_most", "maximum": "at_most", "min": "at_least", "minimum": "at_least",
    "count": "exactly", "number": "exactly", "n": "exactly",
}  # fmt: skip
"""how others call the bounds"""
_SOMETHING = regex.compile(r"[\p{L}\p{N}\p{S}]")
"""a letter, a number or a sign: a reply without any says nothing"""


class Constraints:
    """Parts: one 0 or 1 for each constraint, by its kind."""

    reference_keys: ClassVar = ("constraints",)
    reference_checks: ClassVar = {
        "constraints": "rewards.constraints.constraints:require_constraints"
    }

    async def __call__(self, transcript: Transcript) -> Verdict:
        reference = reference_of(transcript, self.reference_keys)
        constraints = _listed(reference["constraints"])
        parts: dict[str, float] = {}
        for constraint in constraints:
            holds = obeys(transcript.answer, constraint)
            parts[constraint["kind"]] = min(parts.get(constraint["kind"], 1.0), float(holds))
        broken = [kind for kind, holds in parts.items() if not holds]
        reason = f"breaks {', '.join(broken)}" if broken else ""
        return Verdict(float(not broken), parts, reason)


def obeys(reply: str, constraint: Mapping[str, Any]) -> bool:
    """Whether a reply obeys one constraint; an empty one obeys none. Raises InputError for an
    unknown kind or wrong parameters."""
    kind = str(constraint.get("kind", ""))
    if kind not in ALL_KINDS:
        near = did_you_mean(kind, ALL_KINDS)
        raise InputError(f"no constraint is called {kind!r}.{near or _allowed()}")
    given = {name: value for name, value in constraint.items() if name != "kind"}
    if kind not in _TO_THE_LETTER:
        reply, given = plain(reply), {name: _plain(value) for name, value in given.items()}
    parameters, known = _parameters_of(kind)
    try:
        parameters.validate_python(given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        near = ""
        if where in given and where not in known:
            meant = _MEANT.get(where, where)
            near = f". Did you mean {meant!r}?" if meant in known else did_you_mean(where, known)
        raise InputError(
            f"constraint {kind}: {where}: {first['msg']}; its parameters are:"
            f" {', '.join(known) or 'none'}{near}"
        ) from None
    return _SOMETHING.search(reply) is not None and ALL_KINDS[kind](reply, **given)


def _allowed() -> str:
    some = [*ALL_KINDS][:12]
    return f" Allowed: {', '.join(some)} and {len(ALL_KINDS) - len(some)} more"


def require_constraints(value: Any) -> None:
    """Raises InputError for what is no list of constraints, and for one that no reply can obey as
    it is written."""
    for number, constraint in enumerate(_listed(value), 1):
        try:
            obeys("a", constraint)
        except InputError as error:
            raise InputError(f"constraint {number}: {error}") from None


def _listed(value: Any) -> list[dict[str, Any]]:
    """Raises InputError for what is no list of objects, and for an empty one."""
    example = '{"kind": "word_count", "at_least": 3}'
    if value == []:
        raise InputError(
            f"constraints: an empty list judges nothing; list at least one, e.g. {example}"
        )
    listed = cast("list[Any]", value) if isinstance(value, list) else [None]
    if not all(isinstance(constraint, dict) for constraint in listed):
        raise InputError(f"constraints: write a list, and each in it as e.g. {example}")
    return listed


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return plain(value)
    return [_plain(each) for each in value] if isinstance(value, list) else value


@cache
def _parameters_of(kind: str) -> tuple[TypeAdapter[dict[str, Any]], tuple[str, ...]]:
    """Types, and what must not be empty: of texts and lists all that have to be given, but what
    stands between others; and the names in words."""
    fields: dict[str, Any] = {}
    for parameter in [*inspect.signature(ALL_KINDS[kind], eval_str=True).parameters.values()][1:]:
        is_needed = parameter.default is inspect.Parameter.empty
        typed: Any = parameter.annotation
        if is_needed and parameter.name != "separator" and typed not in (int, float):
            typed = Annotated[typed, AfterValidator(_is_not_empty)]
        fields[parameter.name] = Required[typed] if is_needed else NotRequired[typed]
    shape: Any = TypedDict(kind, fields)  # pyrefly: ignore[not-callable]
    shape.__pydantic_config__ = ConfigDict(extra="forbid", strict=True)
    return TypeAdapter(shape), tuple(fields)


def _is_not_empty(value: Any) -> Any:
    if not value:
        raise ValueError("must not be empty")
    return value
