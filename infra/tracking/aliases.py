"""Which artifacts the aliases of MLflow's registered models point at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from infra.tracking.rest import MlflowRest


@dataclass(frozen=True, slots=True)
class AliasedArtifact:
    """Example: name="cpu-demo-agent", alias="best", digest="3f09...",
    url="file:///data/store/artifacts/rl/3f09c2b1a7d4/a1" """

    name: str
    alias: str
    digest: str
    url: str
    """the folder that contains its files"""

    @property
    def root(self) -> str:
        """The store that it is in."""
        return self.url.rpartition("/artifacts/")[0]


def aliased_artifact(uri: str, name: str, alias: str) -> AliasedArtifact | None:
    """What `name@alias` is; None where there is no such alias, or another program set it."""
    return _artifact(name, alias, MlflowRest(uri).aliased_version(name, alias))


def aliased_artifacts(uri: str) -> Iterator[AliasedArtifact]:
    """Every alias that points at an artifact."""
    rest = MlflowRest(uri)
    for model in rest.registered_models():
        for entry in model.get("aliases", []):
            name, alias = str(model["name"]), str(entry["alias"])
            found = _artifact(name, alias, rest.aliased_version(name, alias))
            if found is not None:
                yield found


def _artifact(name: str, alias: str, version: Mapping[str, Any] | None) -> AliasedArtifact | None:
    tags = {tag["key"]: str(tag["value"]) for tag in (version or {}).get("tags", [])}
    digest, url = tags.get("tributary.digest", ""), tags.get("tributary.url", "")
    return AliasedArtifact(name, alias, digest, url) if digest and url else None
