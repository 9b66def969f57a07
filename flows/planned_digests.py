"""The digests of a plan before anything runs: each follows from those of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from flows.plan import PlannedStage
from infra.code.identity import LookedUp
from infra.home import SOURCE_ROOT
from infra.user_files import InstalledFiles
from tasks.durable.identity import StageIdentity, stage_identity


def planned_identities(
    plan: Iterable[PlannedStage],
    user: InstalledFiles | None = None,
    *,
    root: Path = SOURCE_ROOT,
    looked_up: LookedUp | None = None,
    taken_as: Callable[[PlannedStage, StageIdentity], StageIdentity] | None = None,
) -> dict[str, StageIdentity]:
    """By stage name. `taken_as` says which result counts for a stage, if it is another's. Raises
    InputError as `stage_identity` does."""
    found: dict[str, StageIdentity] = {}
    looked_up = looked_up or LookedUp()
    digests: dict[str, str] = {}
    for stage in plan:
        inputs = {role: digests[source] for role, source in stage.inputs.items()}
        identity = stage_identity(stage.spec, inputs, user, root=root, looked_up=looked_up)
        found[stage.name] = taken_as(stage, identity) if taken_as else identity
        digests[stage.name] = found[stage.name].digest
    return found
