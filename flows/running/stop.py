"""Stopping a run: its own jobs end after a checkpoint; jobs it joined belong to someone else."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from flows.running.open import launcher_of
from flows.running.records import RunRecord
from tasks.durable.launch import Launcher


def stop_run(record: RunRecord, launcher: Launcher | None = None) -> None:
    """Stop all jobs of a run side by side, and put the run on record as stopped."""
    stop = (launcher or launcher_of(record)).stop
    running = [stage for stage in record.stages().values() if stage.state == "running"]
    jobs = [stage.job for stage in running if stage.mine]
    with ThreadPoolExecutor(max(1, len(jobs))) as pool:
        list(pool.map(stop, jobs))
    for stage in running:
        latest = record.stage(stage.name) or stage
        if latest.state == "running":  # its flow is gone and will not say so
            record.put_stage(latest.model_copy(update={"state": "stopped"}))
    state = record.state()
    if state.state in ("pending", "running"):
        record.put_state(state.model_copy(update={"state": "stopped", "message": "cancelled"}))
