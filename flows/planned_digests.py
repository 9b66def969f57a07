"""The digests of a plan before anything runs: each follows from those of its inputs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from flows.plan import PlannedStage
from infra.code.identity import LookedUp
from infra.home import SOURCE_ROOT
from infra.user_files import InstalledFiles
from tasks.durable.identity import StageIdentity, stage_identity


def planned_identities(
    plan: Iterable[PlannedStage], user: InstalledFiles | None = None, *, root: Path = SOURCE_ROOT
) -> dict[str, StageIdentity]:
    """By stage name. Raises InputError as `stage_identity` does."""
    found: dict[str, StageIdentity] = {}
    looked_up = LookedUp()
    digests: dict[str, str] = {}
    for stage in plan:
        inputs = {role: digests[source] for role, source in stage.inputs.items()}
        found[stage.name] = stage_identity(stage.spec, inputs, user, root=root, looked_up=looked_up)
        digests[stage.name] = found[stage.name].digest
    return found
