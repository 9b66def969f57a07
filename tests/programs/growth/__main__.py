"""`make growth`: what costs grow with history, or faster than the work.

Usage: python -m tests.programs.growth [ROW ...]. Each row calls the real classes with made-up data
at three sizes, each in a process of its own, and counts processor time, memory, calls to the store
and bytes. A row whose name has none of ROW in it is left out. It writes `build/growth.json` and,
of all rows, the table of `docs/figures.md`; exit 1 if a cost grows faster than its row allows.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.programs.bench.rows import machine
from tests.programs.growth.fit import Fitted, Measured, least
from tests.programs.growth.meter import Figure, Meter
from tests.programs.growth.page import HEAD, lines, update_page
from tests.programs.growth.registry import ROWS, Growth, load_rows

RESULT = Path("build/growth.json")
TRIES = 3
"""of a row that breaks its bound: a busy machine may have slowed one size"""
SIZE_S = 180.0
"""one size of one row may take"""
PROCESSES = 2


def main(words: Sequence[str]) -> int:
    load_rows()
    chosen = [r for r in ROWS.values() if not words or any(w in r.name for w in words)]
    if not chosen:
        print(f"no row is called so; there are: {', '.join(ROWS)}", file=sys.stderr)
        return 2
    began = time.monotonic()
    with ThreadPoolExecutor(PROCESSES) as pool:
        found = list(pool.map(_fitted, chosen))
    _write(found, time.monotonic() - began)
    if not words:
        update_page(found, machine())
    _show(found)
    return 0 if all(each.holds for each in found) else 1


def _fitted(row: Growth) -> Fitted:
    """Measured at each size; all again while it breaks a bound."""
    tries: list[list[Measured]] = []
    while True:
        try:
            tries.append([_apart(row, size) for size in row.sizes])
        except RuntimeError as error:
            print(f"{row.name}: FAILED: {error}", file=sys.stderr, flush=True)
            return Fitted(row, (), str(error))
        fitted = Fitted(row, least(row, tries))
        if fitted.holds or len(tries) == TRIES or not _may_be_noise(fitted):
            grown = ", ".join(f"{f} {e:.2f}" for f, e in fitted.exponents.items())
            print(f"{row.name}: {grown}", file=sys.stderr, flush=True)
            return fitted


def _may_be_noise(fitted: Fitted) -> bool:
    """Calls and bytes are counted exactly, and no machine is so busy that it doubles a growth."""
    return all(
        figure in (Figure.CPU, Figure.MEMORY)
        and fitted.exponents[figure] - fitted.row.bounds[figure] < 0.5
        for figure in fitted.broken
    )


def _apart(row: Growth, size: int) -> Measured:
    """One size, in a fork of this process with a folder of its own. Raises RuntimeError."""
    forks = multiprocessing.get_context("fork")
    ours, theirs = forks.Pipe(duplex=False)
    with tempfile.TemporaryDirectory(prefix="tr-growth-", ignore_cleanup_errors=True) as folder:
        child = forks.Process(target=_measure, args=(row.name, size, Path(folder), theirs))
        child.start()
        theirs.close()
        try:
            if not ours.poll(SIZE_S):
                raise RuntimeError(f"size {size} took longer than {SIZE_S:.0f} s")
            told: dict[str, float] | str = ours.recv()
        except EOFError:
            raise RuntimeError(f"the process of size {size} ended without a word") from None
        finally:
            child.kill()
            child.join()
            ours.close()
    if isinstance(told, str):
        raise RuntimeError(told)
    return {Figure(name): value for name, value in told.items()}


def _measure(name: str, size: int, folder: Path, answer: Connection) -> None:
    """What the fork does: the row, in a home of its own."""
    os.environ["TRIBUTARY_HOME"] = str(folder / "home")
    try:
        meter = Meter(folder)
        ROWS[name].measure(size, meter)
        answer.send({str(figure): value for figure, value in meter.figures.items()})
    except Exception:
        answer.send(traceback.format_exc(limit=-4))


def _write(found: Sequence[Fitted], seconds: float) -> None:
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    rows = [_plain(each) for each in found]
    record = {"rows": rows, "seconds": round(seconds), "machine": machine()}
    RESULT.write_text(json.dumps(record, indent=1) + "\n")


def _plain(each: Fitted) -> dict[str, Any]:
    return {
        "name": each.row.name, "sizes": each.row.sizes, "of": each.row.what,
        "costs": each.costs, "exponents": each.exponents, "bounds": each.row.bounds,
        "holds": each.holds, "failure": each.failure,
    }  # fmt: skip


def _show(found: Sequence[Fitted]) -> None:
    table = Table(*HEAD, title=f"how costs grow ({machine()})")
    for cells in lines(found):
        table.add_row(*cells[:-1], "[green]yes" if cells[-1] == "yes" else "[bold red]NO")
    Console(width=None if os.isatty(1) else 180).print(table)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
