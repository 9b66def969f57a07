"""`make mutants`: changes the algorithms in small wrong ways and counts what the tests notice.

Usage: python -m tests.programs.mutants [--sample N] [--seed N] [--seconds N] [--file PART].
Outcomes are kept in `build/mutants.jsonl`, so that a run goes on where the last one ended. Prints
the survivors and writes `build/mutants.json`. Exit 1 if the score of the tried ones is below the
floor, or if some were not tried.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.programs.bench.rows import show, write
from tests.programs.mutants.record import Record, key_of
from tests.programs.mutants.report import rows_of
from tests.programs.mutants.subject import every_mutant, read_sources, test_files
from tests.programs.mutants.workshop import workshop

RESULT, RECORD = Path("build/mutants.json"), Path("build/mutants.jsonl")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.programs.mutants")
    parser.add_argument("--sample", type=int, help="how many mutants; left out: all")
    parser.add_argument("--seed", type=int, default=0, help="of the sample and the order")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after these")
    parser.add_argument("--file", default="", help="only files whose path holds this")
    wanted = parser.parse_args(arguments)
    os.nice(max(0, 10 - os.nice(0)))
    for name in ("OMP_NUM_THREADS", "TORCH_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    return _measure(wanted)


def _measure(wanted: argparse.Namespace) -> int:
    began = time.monotonic()
    sources, files = read_sources(), test_files()
    every = every_mutant({file: s for file, s in sources.items() if wanted.file in file})
    random.Random(wanted.seed).shuffle(every)
    keys = {mutant: key_of(mutant, sources[mutant.file]) for mutant in every[: wanted.sample]}
    record = Record(RECORD, files)
    todo = [mutant for mutant, key in keys.items() if key not in record.held]
    print(f"{len(every)} mutants, {len(keys)} chosen, {len(todo)} to try", flush=True)
    if todo:
        with workshop(files, sources) as shop:
            for number, mutant in enumerate(todo):
                if time.monotonic() - began > wanted.seconds:
                    break
                killer = shop.killer_of(mutant)
                record.keep(keys[mutant], mutant, killer)
                if killer is None or number % 50 == 0:
                    print(f"{number} {mutant.name}  [{killer or 'survived'}]", flush=True)
    tried = [record.held[key] for key in keys.values() if key in record.held]
    rows = rows_of(tried, sources, len(every), len(keys))
    show(rows, f"mutants, {time.monotonic() - began:.0f} s")
    write(rows, RESULT)
    return 0 if all(row.holds for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
