"""Where the seconds of each stage went. Pure: from an artifact's metrics and its trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flows.reports.stage_view import StageView
from infra.timeline import TRAINER
from infra.trace_file import Trace

WHAT = {
    "sample": "sampling and judging; of RL, while the trainer waits",
    "train": "optimizer steps",
    "publish": "new weights to the servers",
    "hold": "a publish waits for an evaluation",
    "checkpoint": "writing checkpoints, as long as they stop the work",
    "other": "the rest of the work",
    "start and end": "processes, devices, loading and saving the model",
}
"""the parts, in the order in which they are drawn"""


@dataclass(frozen=True, slots=True)
class Seconds:
    """Of one stage. For a cached one, those of the attempt that made it."""

    total: float
    parts: dict[str, float]
    """by name of `WHAT`; they add up to the total"""


def seconds_of(view: StageView) -> Seconds | None:
    """None where no artifact is there to say it."""
    if view.manifest is None:
        return None
    metrics = view.manifest.metrics
    total = max(view.manifest.seconds, 1e-9)
    work = min(metrics.get("work_seconds", 0.0), total)
    known = _known(view.planned.spec.policy is not None, metrics, view.trace, work)
    spent = sum(known.values())
    if spent > work > 0:  # several attempts' sums, or two clocks that differ a little
        known = {name: value * work / spent for name, value in known.items()}
        spent = work
    parts = {**known, "other": work - spent, "start and end": total - work}
    return Seconds(total, {name: parts[name] for name in WHAT if parts.get(name, 0.0) > 0})


def _known(
    is_policy: bool, metrics: Mapping[str, float], trace: Trace | None, work: float
) -> dict[str, float]:
    checkpoint = metrics.get("checkpoint_seconds", 0.0)
    if is_policy and "trainer_idle_seconds" in metrics:
        return {
            "sample": metrics["trainer_idle_seconds"],
            "train": metrics["train_seconds"],
            "publish": metrics["publish_seconds"],
            "hold": _held(trace),
            "checkpoint": checkpoint,
        }
    if "train_seconds" in metrics:
        return {"train": metrics["train_seconds"], "checkpoint": checkpoint}
    if "generate_tokens_per_s" in metrics or "generated_tokens" in metrics:
        return {"sample": work}
    return {}


def _held(trace: Trace | None) -> float:
    events = trace.events if trace else ()
    return sum(e.seconds or 0.0 for e in events if (e.lane, e.name) == (TRAINER, "hold"))
