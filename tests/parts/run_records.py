"""Runs on record and artifacts in a store, as runs leave them, without running anything."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from flows.load import load_recipe
from flows.recipe import Recipe, Storage
from flows.running.new_run import new_run
from flows.running.records import RunRecord, RunState, StageRecord, store_of
from infra.home import home
from infra.store.artifacts import ArtifactRecord, ArtifactStore


def artifact_store() -> ArtifactStore:
    """The default store of this home."""
    return ArtifactStore(store_of(Storage()), home() / "cache")


@cache
def smoke() -> Recipe:
    """The recipe of these runs, read once."""
    return load_recipe("cpu-smoke")


def put_artifact(
    kind: str, digest: str, folder: Path, inputs: dict[str, str] | None = None, run: str = ""
) -> ArtifactRecord:
    return artifact_store().commit(
        kind, digest, 1, folder, identity={"steps": 3}, inputs=inputs or {},
        code={"hash": "ef", "commit": "0123456789abcdef", "dirty": False}, metrics={"loss": 0.5},
        run=run, stage=f"agent-{kind}" if run else "",
        seeds={"seed": 7}, mlflow_run_id="", seconds=2.5,
    )  # fmt: skip


def put_run(stages: dict[str, tuple[str, str]], state: str = "completed") -> RunRecord:
    """A run of `cpu-smoke` with these stages, each a kind and a digest."""
    record = new_run(smoke(), "post-train", {}, in_process=True)
    record.put_state(RunState.model_validate({"state": state}))
    for name, (kind, digest) in stages.items():
        record.put_stage(StageRecord(name=name, kind=kind, digest=digest, state="completed"))
    return record
