"""`tributary clean`: what of runs that ended long ago takes room in this home's records."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from flows.command.output import print_json
from infra.errors import InputError
from infra.home import home
from infra.stack.database import database, free_bytes, give_back
from infra.stack.kept_days import DAY_S, kept_days
from infra.tracking.old_curves import thin_curves


def clean_records(days: int | None, yes: bool, json: bool, console: Console) -> int:
    """Show what could go, and remove it if the person said so; -> exit code."""
    if days is not None and days < 1:
        raise InputError(f"--days {days}: give at least one day")
    days = kept_days() if days is None else days
    before = time.time() - days * DAY_S
    place = database() or home() / "mlflow" / "mlflow.db"
    curves = thin_curves(place, int(before * 1000), dry=not yes)
    logs = list(_old_logs(before))
    size = sum(path.stat().st_size for path in logs)
    files = [home() / "mlflow" / "mlflow.db", home() / "prefect" / "prefect.db"]
    free = {path: left for path in files if (left := free_bytes(path))}
    kept_open = [path.name for path in free if yes and not give_back(path)]
    if yes:
        for path in logs:
            path.unlink(missing_ok=True)
    if json:
        told = {"curves": asdict(curves) | {"bytes": curves.bytes}, "deleted": yes}
        told |= {"logs": {"files": len(logs), "bytes": size}, "days": days}
        print_json(told | {"free": sum(free.values()), "kept_open": kept_open})
        return 0
    gone = "removed" if yes else "could go"
    for line in (
        f"curves in MLflow of {curves.runs} runs that ended more than {days} days ago:"
        f" {curves.points:,} points, {curves.bytes / 1e6:.1f} MB {gone}",
        f"logs of as long ago: {len(logs)} files, {size / 1e6:.1f} MB {gone}",
        f"room that removed rows left in the databases: {sum(free.values()) / 1e6:.1f} MB {gone}",
        *(f"{name} keeps its size: it is in use, or the disk is full" for name in kept_open),
        *([] if yes else ["Nothing was deleted; --yes deletes it."]),
    ):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return 0


def _old_logs(before: float) -> Iterator[Path]:
    """That nobody wrote to since."""
    for path in sorted((home() / "logs").rglob("*")):
        if path.is_file() and not path.is_symlink() and path.stat().st_mtime < before:
            yield path
