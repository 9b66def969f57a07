"""The `constraints` reward: what a reply must obey, and how each kind of constraint is checked.

A problem's reference holds the list: `{"constraints": [{"kind": "word_count", "exactly": 3}]}`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from engines.types import Transcript, Verdict
from infra.errors import InputError
from infra.hooks import did_you_mean
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


class Constraints:
    """Parts: one 0 or 1 for each constraint, by its kind."""

    reference_keys: ClassVar = ("constraints",)

    async def __call__(self, transcript: Transcript) -> Verdict:
        reference = reference_of(transcript, self.reference_keys)
        constraints: list[dict[str, Any]] = reference["constraints"]
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
        raise InputError(f"no constraint is called {kind!r}.{did_you_mean(kind, ALL_KINDS)}")
    check, parameters = ALL_KINDS[kind], {k: v for k, v in constraint.items() if k != "kind"}
    try:
        inspect.signature(check).bind(reply, **parameters)
    except TypeError as error:
        raise InputError(f"constraint {kind}: {error}") from None
    return bool(reply.strip()) and check(reply, **parameters)
