"""What the rewards of a domain read of the references of its own rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from curricula.prompt_files.spec import PromptSource
from rewards.built_in import BUILT_IN
from rewards.references import reference_keys

if TYPE_CHECKING:
    from tasks.domain import RewardSpec


def with_needs(options: Mapping[str, Any], rewards: Sequence[RewardSpec]) -> dict[str, Any]:
    """Options of the curriculum `files` in which each source says what our rewards read of its
    references: a row that lacks it is a bad row."""
    given = options["sources"]
    listed: list[Any] = given if isinstance(given, list) else [given]
    sources: list[Any] = []
    for written in listed:
        source = PromptSource.model_validate(written)
        judged = [r for r in rewards if not r.sources or source.name in r.sources]
        keys = {k for r in judged if r.name in BUILT_IN for k in reference_keys(r.name, r.options)}
        needs = sorted(keys.union(source.needs))
        sources.append({**dict(written), "needs": needs} if needs else written)
    return {**options, "sources": sources if isinstance(given, list) else sources[0]}
