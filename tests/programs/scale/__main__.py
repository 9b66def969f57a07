"""`make scale`: how near the RL loop's code comes to what trainer and servers can do, simulated.

Usage: python -m tests.programs.scale. It writes `build/scale.json` and the chart of
`docs/gpus.md`; exit 1 if a row does not hold its bound. The figures follow from the seeds alone.
"""

from __future__ import annotations

import os
import statistics
import sys
from pathlib import Path

from tests.programs.bench.rows import Row, show, write
from tests.programs.scale.chart import draw
from tests.programs.scale.setups import Case, balanced, variants
from tests.programs.scale.simulation import Measured, seconds_of_a_group, simulate

RESULT = Path("build/scale.json")
TURNS = (4, 10, 30)
MOST_LATE = 1.1
"""of turns that share requests: each is answered when it is done"""
CHART = Path("docs/images/scale.svg")


def main() -> int:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    rows: list[Row] = []
    spent, rollouts = 0.0, 0
    bars: dict[tuple[int, int], float] = {}
    for case in [*balanced(), *variants()]:
        measured = simulate(case.setup)
        rows.append(_row(case, measured))
        print(f"{case.name}: {rows[-1].value:.3f}", file=sys.stderr, flush=True)
        bars.setdefault((case.setup.servers, case.setup.staleness), rows[-1].value)
        spent, rollouts = spent + measured.cpu_s, rollouts + measured.rollouts
    rows += [_turns_row(turns) for turns in TURNS]
    note = f"for {rollouts} rollouts"
    rows.append(Row("processor time of the simulations", spent, "s", note=note))
    write(rows, RESULT)
    CHART.write_text(draw(bars))
    show(rows, "goodput / bound")
    return 0 if all(row.holds for row in rows) else 1


def _turns_row(turns: int) -> Row:
    pairs = [[seconds_of_a_group(turns, batch, seed) for batch in (16, 1)] for seed in range(8)]
    return Row(
        f"a group of 16 with {turns} turns, tools at once: seconds / those of independent requests",
        statistics.median(together / apart for together, apart in pairs),
        "ratio", MOST_LATE, at_most=True, note=f"median of {len(pairs)} groups, log-normal lengths",
    )  # fmt: skip


def _row(case: Case, measured: Measured) -> Row:
    lost = f", {measured.lost_servers} servers lost" if measured.lost_servers else ""
    return Row(
        case.name,
        measured.tokens_per_s / case.setup.bound,
        "ratio",
        case.floor,
        note=f"steps of {measured.step_s:.0f} s, {case.setup.groups_per_step} groups; trainer idle"
        f" {measured.trainer_idle:.0%}, places taken {measured.places_taken:.0%}, tokens trained on"
        f" {measured.used:.0%}, staleness {measured.staleness:.1f}{lost};"
        f" {measured.cpu_s:.0f} s of processor time",
    )


if __name__ == "__main__":
    sys.exit(main())
