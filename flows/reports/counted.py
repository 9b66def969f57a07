"""What became of rollouts, groups and rows: every filter's count, by stage. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flows.reports.stage_view import StageView
from tasks.admit.admission import CAUSES

_SFT = ("sequences", "too_long", "without_thinking", "unrendered")


@dataclass(frozen=True, slots=True)
class Count:
    """Example: Count("wrong", 99, 128)"""

    name: str
    value: int
    of: int
    """what it is a share of"""
    is_kept: bool = False
    """whether it is what got through"""


@dataclass(frozen=True, slots=True)
class Counted:
    """One table: what was counted in one stage, e.g. its groups by filter."""

    stage: str
    title: str
    counts: Sequence[Count]


def counted(views: Sequence[StageView]) -> list[Counted]:
    """Of all stages that have counts, in the plan's order; no table is empty."""
    return [table for view in views for table in _tables(view) if table.counts]


def _tables(view: StageView) -> Iterator[Counted]:
    match view.planned.kind:
        case "distill":
            for domain, counts in view.counts.items():
                yield Counted(view.name, f"rollouts of {domain}", _funnel(counts))
        case "admit":
            for name, counts in view.counts.items():
                yield Counted(view.name, f"problems of {name}", _tried(counts))
        case "evaluate":
            yield from _evaluated(view)
        case _ if "groups" in view.counts:
            yield from _learned(view.name, view.counts)
        case _:
            metrics = view.manifest.metrics if view.manifest else {}
            yield Counted(view.name, "sequences", _sequences(metrics))


def _learned(stage: str, counts: Mapping[str, Any]) -> Iterator[Counted]:
    rollouts, groups = dict[str, int](counts["rollouts"]), dict[str, int](counts["groups"])
    total = sum(rollouts.values())
    yield Counted(
        stage,
        "rollouts, by how they ended",
        [Count(k, n, total, k == "completed") for k, n in _by_size(rollouts)],
    )
    sampled = groups.pop("sampled", 0)
    named = [Count("sampled", sampled, sampled, True)] + [
        Count(k, n, sampled, k == "trained on") for k, n in _by_size(groups) if n
    ]
    yield Counted(stage, "groups, by what became of them", named if sampled else [])


def _funnel(counts: Mapping[str, int]) -> list[Count]:
    sampled = counts.get("sampled", 0)
    return [Count(k, n, sampled, k in ("sampled", "kept")) for k, n in counts.items()]


def _tried(counts: Mapping[str, int]) -> list[Count]:
    """Those that are refused by the first reason."""
    tried, admitted, refused = counts["tried"], counts["admitted"], dict[str, int](counts)
    del refused["tried"], refused["admitted"]
    why = [Count(f"refused: {CAUSES[cause]}", n, tried) for cause, n in _by_size(refused)]
    return [Count("tried", tried, tried, True), Count("admitted", admitted, tried, True), *why]


def _evaluated(view: StageView) -> Iterator[Counted]:
    """Over all cells: shares are of each cell, and its rollouts are known."""
    totals: dict[str, float] = {}
    rollouts = 0
    reasons: dict[str, int] = {}
    for cell in view.scores.get("cells", []):
        number = cell.get("rollouts", 0)
        rollouts += number
        for name in ("truncated", "malformed", "failed"):
            totals[name] = totals.get(name, 0.0) + number * cell.get(f"{name}_share", 0.0)
        if cell.get("failure"):
            reasons[cell["failure"]] = reasons.get(cell["failure"], 0) + 1
    bad = [Count(name, round(value), rollouts) for name, value in totals.items()]
    well = Count("completed", rollouts - sum(c.value for c in bad), rollouts, True)
    yield Counted(view.name, "rollouts, by how they ended", [well, *bad] if rollouts else [])
    cells = len(view.scores.get("cells", []))
    failures = [Count(reason, n, cells) for reason, n in _by_size(reasons)]
    yield Counted(view.name, "cells, by their most frequent failure", failures)


def _sequences(metrics: Mapping[str, float]) -> list[Count]:
    """Rows of an SFT stage: those that it could learn from, and those left out, by reason."""
    if "rows_read" in metrics:
        read = int(metrics["rows_read"])
        bad = {
            name.removeprefix("bad_rows_"): int(value)
            for name, value in metrics.items()
            if name.startswith("bad_rows_")
        }
        good = Count("read and used", read - sum(bad.values()), read, True)
        return [good, *(Count(f"bad: {k}", n, read) for k, n in _by_size(bad))]
    packed, *rest = (int(metrics.get(name, 0)) for name in _SFT)
    if not packed:
        return []
    too_long, without_thinking, unrendered = rest
    total = packed + too_long + unrendered
    return [
        Count("used", packed, total, True),
        Count("of them without thinking", without_thinking, total, True),
        Count("left out: too long", too_long, total),
        Count("left out: the chat template does not render it", unrendered, total),
    ]


def _by_size(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))
