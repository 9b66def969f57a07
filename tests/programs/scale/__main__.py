"""`make scale`: how near the RL loop's code comes to what trainer and servers can do, simulated.

Usage: python -m tests.programs.scale. It writes `build/scale.json` and the chart of
`docs/scale.md`; exit 1 if a row does not hold its bound. The figures follow from the seeds alone.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.programs.bench.rows import Row, show, write
from tests.programs.scale.chart import draw
from tests.programs.scale.setups import Case, balanced, variants
from tests.programs.scale.simulation import Measured, simulate

RESULT = Path("build/scale.json")
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
    note = f"for {rollouts} rollouts"
    rows.append(Row("processor time of the simulations", spent, "s", note=note))
    write(rows, RESULT)
    CHART.write_text(draw(bars))
    show(rows, "goodput / bound")
    return 0 if all(row.holds for row in rows) else 1


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
