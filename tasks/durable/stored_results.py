"""Results of a part of a stage, for other stages that have the same part.

ROOT/results/<model's digest12>/<digest12>.json     goes with the model's artifact
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from infra.code.identity import CodeIdentity
from infra.store.removal import RESULTS
from infra.store.seal import seal, unseal
from infra.store.store import Store
from tasks.durable.identity import StageIdentity, spec_content
from tasks.stage import StageSpec


@dataclass(frozen=True, slots=True)
class StoredResults:
    """A stage's view of them. `code` is what the stage runs."""

    store: Store
    code: CodeIdentity

    def read(self, spec: StageSpec, inputs: Mapping[str, str], model: str) -> Any:
        """None where there is none, and where it is damaged: it is made again."""
        digest = self._digest(spec, inputs)
        try:
            found = json.loads(unseal(self.store.read(_path(model, digest))))
        except (FileNotFoundError, ValueError):
            return None
        return found["results"] if found["digest"] == digest else None

    def keep(self, spec: StageSpec, inputs: Mapping[str, str], model: str, results: Any) -> None:
        """`results`: anything that JSON can write."""
        digest = self._digest(spec, inputs)
        text = json.dumps({"digest": digest, "results": results})
        self.store.write(_path(model, digest), seal(text))

    def _digest(self, spec: StageSpec, inputs: Mapping[str, str]) -> str:
        """As a stage of this part alone would have it."""
        return StageIdentity(spec.kind, spec_content(spec), dict(inputs), self.code).digest


def _path(model: str, digest: str) -> str:
    return f"{RESULTS}/{model[:12]}/{digest[:12]}.json"
