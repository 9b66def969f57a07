"""What a command costs before it does anything: seconds of a core, the median of several starts."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.programs.bench.rows import Row

TIMES = 5
PROGRAM = str(Path(sys.executable).parent / "tributary")


def measure() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="tr-commands-") as home:
        first = _seconds(home, "check", "cpu-demo")
        again = _median(home, "check", "cpu-demo")
        return [
            Row("tributary --help", _median(home, "--help"), "CPU s", 0.4, at_most=True),
            Row("tributary sft --help", _median(home, "sft", "--help"), "CPU s", 0.4, at_most=True),
            Row("tributary check cpu-demo, in a new home", first, "CPU s"),
            Row("tributary check cpu-demo, again", again, "CPU s", 2.0, at_most=True),
        ]


def _median(home: str, *arguments: str) -> float:
    return statistics.median(_seconds(home, *arguments) for _ in range(TIMES))


def _seconds(home: str, *arguments: str) -> float:
    """A core's, whatever else the machine does: wall time would measure that too."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = os.environ | {"TRIBUTARY_HOME": home}
    subprocess.run(
        [PROGRAM, *arguments], env=environment, check=True, stdout=subprocess.DEVNULL, timeout=300
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
