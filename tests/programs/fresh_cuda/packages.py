"""Adds to an environment of the CUDA lock what only the CPU lock has: the packages of the tests."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from install.lock import read_lock
from install.pip_settings import pip_options, settings_for_uv
from install.uv import Uv, bootstrap_uv
from tests.programs.fresh_cuda.steps import ROOT


def main(venv: Path) -> None:
    os.environ.update(settings_for_uv(pip_options(), os.environ))
    uv = Uv(bootstrap_uv(ROOT / "build/uv"), venv / "bin/python")
    uv.install("--no-deps", "-r", "-", typed="\n".join(only_in_cpu_lock()))


def only_in_cpu_lock() -> list[str]:
    """Its lines for packages that the CUDA lock does not name."""
    cpu, cuda = (
        read_lock(ROOT / "locks" / f"{name}.txt").without_torch for name in ("cpu", "cuda")
    )
    named = {_name(line) for line in cuda}
    return [line for line in cpu if _name(line) not in named]


def _name(line: str) -> str:
    return line.partition("==")[0]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
