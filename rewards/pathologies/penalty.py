"""The reward `pathologies`: what a reply loses that shows one."""

from __future__ import annotations

from collections.abc import Sequence

from engines.types import Transcript, Verdict
from infra.errors import InputError
from rewards.pathologies.detectors import PATHOLOGIES, Pathology, pathologies_in


class Pathologies:
    """-1 if the rollout shows a pathology, else 0; its parts say which."""

    def __init__(self, *, kinds: Sequence[Pathology] = PATHOLOGIES) -> None:
        """`kinds`: those that it looks for."""
        if not kinds or (unknown := [kind for kind in kinds if kind not in PATHOLOGIES]):
            what = f"no such kind: {unknown[0]!r}" if kinds else "none is named"
            raise InputError(f"`kinds`: {what}. Allowed: {', '.join(PATHOLOGIES)}.")
        self._kinds = tuple(kinds)

    async def __call__(self, transcript: Transcript) -> Verdict:
        found = pathologies_in(transcript, self._kinds)
        parts: dict[str, float] = {kind: float(kind in found) for kind in self._kinds}
        return Verdict(-float(bool(found)), parts, f"shows {', '.join(found)}" if found else "")
