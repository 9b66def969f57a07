"""What is tried of the CUDA lock, in this order, each as a command that a person can repeat."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
LOCK = "locks/cuda.txt"
_HERE = "tests.programs.fresh_cuda"
_UNSET = ("CUDA_HOME", "CUDA_PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV")
"""so that no toolkit, driver or package of the host is taken for one of the lock"""
MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class Step:
    name: str
    command: Sequence[str]
    within_s: float
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    """besides those of `environment`"""

    def typed(self) -> str:
        """For a shell, from the repository's root."""
        given = [f"{name}={shlex.quote(value)}" for name, value in self.variables.items()]
        return " ".join([*given, shlex.join(self.command)])


def steps(folder: Path) -> list[Step]:
    """`folder`: for the environment and everything that the steps make."""
    python, stub = str(folder / "venv/bin/python"), folder / "stub"
    tributary = str(folder / "venv/bin/tributary")
    driver = {"LD_LIBRARY_PATH": str(stub)}
    pytest = ["-m", "pytest", "-q", "-n", "2", "--dist", "loadscope", "tests/unit"]
    tests = [f"{_HERE}.packages", str(folder / "venv")]
    return [
        Step(
            "install",
            [sys.executable, "-m", "install", "--lock", LOCK, "--venv", str(folder / "venv")],
            120 * MINUTE_S,
        ),
        Step("packages of the tests", [sys.executable, "-m", *tests], 30 * MINUTE_S),
        Step("doctor", [tributary, "doctor"], 10 * MINUTE_S),
        Step("our modules, without a driver", [python, "-m", f"{_HERE}.modules"], 20 * MINUTE_S),
        Step(
            "a stub of the driver's library",
            [
                sys.executable,
                "-m",
                f"{_HERE}.stub",
                str(folder / "venv"),
                str(stub / "libcuda.so.1"),
            ],
            10 * MINUTE_S,
        ),
        Step(
            "SGLang's server modules",
            [python, "-m", f"{_HERE}.modules", "servers"],
            20 * MINUTE_S,
            driver,
        ),
        Step("a kernel of SGLang", [python, "-m", f"{_HERE}.kernel"], 20 * MINUTE_S, driver),
        Step("unit tests", [python, *pytest], 120 * MINUTE_S, driver),
        Step("up", [tributary, "up"], 10 * MINUTE_S, driver),
        Step("cpu-smoke", [tributary, "run", "cpu-smoke"], 60 * MINUTE_S, driver),
        Step("down", [tributary, "down"], 5 * MINUTE_S),
    ]


def environment(folder: Path) -> dict[str, str]:
    """For every command: what it makes lies in `folder`, and nothing computes on a GPU."""
    kept = {name: value for name, value in os.environ.items() if name not in _UNSET}
    kept["PATH"] = os.pathsep.join([str(folder / "venv/bin"), os.environ.get("PATH", "")])
    return kept | {
        "CUDA_VISIBLE_DEVICES": "",
        "TRIBUTARY_HOME": str(folder / "home"),
        "SGLANG_JIT_CACHE_DIR": str(folder / "kernels"),
    }
