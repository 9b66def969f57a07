"""`make bench`: speed rows against raw engines, printed and written to `build/bench.json`.

Usage: python -m tests.programs.bench [SECTION...]; without one all are measured. Ratios are taken
in one run against their reference, side by side. Exit 1 if a row does not hold its bound.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tests.programs.bench.rows import Row, show, write

if TYPE_CHECKING:
    from tests.programs.bench.servers import Servers
    from tests.programs.bench.workbench import Workbench

RESULT = Path("build/bench.json")
ALONE = (
    "batching", "loss_path", "driver", "in_flight", "delta", "large_publish", "message_files",
    "report", "worker_news", "attention", "large_checkpoint", "memory", "agents", "sandboxes",
    "multi_turn", "commands",
)  # fmt: skip
"""need no trained model"""
WITH_A_MODEL = (
    "trainer", "presets", "rollout", "publish", "agreement", "grpo", "slow_tools", "serve",
    "saving", "overhead",
)  # fmt: skip
REAL = "real"
"""the rows of a real model, which its package brings, take a quarter of an hour"""
SECTIONS = (*ALONE, *WITH_A_MODEL, REAL)
# Read when torch and SGLang are imported, which therefore happens later.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    # Megatron-core and torch warn of dozens of things that a CPU lacks.
    "PYTHONWARNINGS": "ignore",
}


def main(wanted: Sequence[str]) -> int:
    unknown = set(wanted) - set(SECTIONS)
    if unknown:
        print(f"no section {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
        return 2
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    warnings.simplefilter("ignore")
    began = time.monotonic()
    rows: list[Row] = []
    try:
        for section in _sections(wanted or SECTIONS):
            rows += section
            write(rows, RESULT)  # what comes later may fail
    finally:
        show(rows, f"bench, {time.monotonic() - began:.0f} s")
    return 0 if all(row.holds for row in rows) else 1


def _sections(wanted: Sequence[str]) -> Iterator[list[Row]]:
    """Each section by itself: nothing else runs while one is measured."""
    from tests.programs.bench import (
        agents,
        attention,
        batching,
        commands,
        delta,
        driver,
        in_flight,
        large_checkpoint,
        large_publish,
        loss_path,
        memory,
        message_files,
        multi_turn,
        report,
        sandboxes,
        worker_news,
    )

    alone = (
        batching.measure,
        loss_path.measure,
        driver.measure,
        in_flight.measure,
        delta.measure,
        large_publish.measure,
        message_files.measure,
        report.measure,
        worker_news.measure,
        attention.measure,
        large_checkpoint.measure,
        memory.measure,
        agents.measure,
        sandboxes.measure,
        multi_turn.measure,
        commands.measure,
    )
    for name, measure in zip(ALONE, alone, strict=True):
        if name in wanted:
            yield _section(name, measure)
    if set(wanted) & set(WITH_A_MODEL):
        yield from _with_a_model(wanted)
    if REAL in wanted:
        yield from _real()


def _with_a_model(wanted: Sequence[str]) -> Iterator[list[Row]]:
    from tests.programs.bench import (
        agreement,
        grpo,
        overhead,
        presets,
        publish,
        rollout,
        saving,
        serve,
        slow_tools,
        trainer,
    )
    from tests.programs.bench.servers import servers
    from tests.programs.bench.workbench import workbench

    served = {
        "rollout": rollout.measure,
        "publish": publish.measure,
        "agreement": agreement.measure,
        "grpo": grpo.measure,
        "slow_tools": slow_tools.measure,
        "serve": serve.measure,
    }
    with tempfile.TemporaryDirectory(prefix="tr-bench-") as folder:
        with workbench(Path(folder)) as bench:
            if "trainer" in wanted:
                yield _section("trainer", lambda: trainer.measure(bench))
            if "presets" in wanted:
                yield _section("presets", lambda: presets.measure(bench))
            if any(name in wanted for name in served):
                with servers(bench.folder / "logs") as engines:
                    for name, measure in served.items():
                        if name in wanted:
                            yield _served(name, measure, bench, engines)
            if "saving" in wanted:
                yield _section("saving", lambda: saving.measure(bench))
        if "overhead" in wanted:
            yield _section("overhead", lambda: overhead.measure(bench.model))


def _real() -> Iterator[list[Row]]:
    from tests.programs.bench import real
    from tests.programs.bench.servers import servers
    from tests.programs.bench.workbench import real_workbench

    with (
        tempfile.TemporaryDirectory(prefix="tr-bench-") as folder,
        real_workbench(Path(folder)) as bench,
        servers(bench.folder / "logs") as engines,
    ):
        yield from real.measure(bench, engines)


def _served(
    name: str,
    measure: Callable[[Workbench, Servers], list[Row]],
    bench: Workbench,
    engines: Servers,
) -> list[Row]:
    return _section(name, lambda: measure(bench, engines))


def _section(name: str, measure: Callable[[], list[Row]]) -> list[Row]:
    began = time.monotonic()
    rows = measure()
    print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return rows


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
