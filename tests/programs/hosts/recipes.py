"""A recipe over the hosts of a stack, and what it made."""

from __future__ import annotations

import shutil
from pathlib import Path

from infra.store.artifacts import ArtifactStore
from infra.store.store import Store
from tests.programs.hosts.machines import Machine

_RECIPE = Path(__file__).with_name("recipe.yaml")
_UNTIL = "general-rl"
_WEIGHTS = ".safetensors"


def run(head: Machine, root: str) -> None:
    """Base, SFT and RL with what they make in `root`. Raises RuntimeError with the output."""
    written = head.work / "tmp" / _RECIPE.name
    shutil.copy(_RECIPE, written)
    changed = ["--set", f"storage.root={root}", "--until", _UNTIL]
    head.tributary("run", f"/tmp/{written.name}", *changed)


def weights(root: str, cache: Path) -> dict[str, str]:
    """Checksum of each file of weights, by stage kind and name."""
    artifacts = ArtifactStore(Store(root), cache)
    found: dict[str, str] = {}
    for record in artifacts.list():
        manifest = artifacts.manifest(record.kind, record.digest)
        for file in manifest.files if manifest else ():
            if file.path.endswith(_WEIGHTS):
                found[f"{record.kind}/{file.path}"] = file.sha256
    return found
