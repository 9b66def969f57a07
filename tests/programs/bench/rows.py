"""A bench row: one measured figure, the bound it must hold, and how it was measured."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Row:
    """`floor` is a lower bound, or an upper one with `at_most`; None only shows the value."""

    name: str
    value: float
    unit: str
    floor: float | None = None
    at_most: bool = False
    note: str = ""

    @property
    def holds(self) -> bool:
        if self.floor is None:
            return True
        return self.value <= self.floor if self.at_most else self.value >= self.floor

    @property
    def bound(self) -> str:
        if self.floor is None:
            return "shown"
        return f"{'<=' if self.at_most else '>='} {self.floor:.6g}"


def write(rows: Sequence[Row], path: Path) -> None:
    """The record of a bench: `build/NAME.json`."""
    git = ["git", "rev-parse", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False)
    record = {
        "rows": [_plain(row) for row in rows],
        "machine": machine(),
        "commit": commit.stdout.strip(),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")


def show(rows: Sequence[Row], title: str) -> None:
    table = Table("figure", "value", "unit", "bound", "holds", "how", title=title)
    for row in rows:
        holds = "" if row.floor is None else "[green]yes" if row.holds else "[bold red]NO"
        table.add_row(row.name, f"{row.value:.4g}", row.unit, row.bound, holds, row.note)
    Console(width=None if os.isatty(1) else 160).print(table)


def machine() -> str:
    cores = len(os.sched_getaffinity(0))
    return f"{_processor()}, {cores} cores, load {os.getloadavg()[0]:.1f} at the end"


def _plain(row: Row) -> dict[str, Any]:
    return {k: v for k, v in asdict(row).items() if k != "at_most"} | {"holds": row.holds}


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
