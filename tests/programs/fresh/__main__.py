"""`make fresh`: what a stranger does first, on a Debian that has nothing, with and without a wheel.

Needs root, for `debootstrap` and `chroot`. Everything that it starts lives in namespaces of its own
and ends with them, mounts included.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from install.lock import read_lock
from tests.programs.bench.rows import Row, show, write
from tests.programs.fresh.debian import build, copy
from tests.programs.fresh.host import equip, torch_wheel
from tests.programs.fresh.steps import STEPS, rows_of, run_steps

ROOT = Path(__file__).resolve().parents[3]
BUILD = ROOT / "build"
CASES = ("local torch wheel", "no local torch wheel")


def main() -> int:
    _demand()
    BUILD.mkdir(exist_ok=True)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="fresh-", dir=BUILD) as folder:
        base = build(Path(folder) / "debian")
        for case in CASES:
            rows += _run(case, base, Path(folder) / "machine")
            write(rows, BUILD / "fresh.json")
    show(rows, "a plain machine")
    return 0 if all(row.holds for row in rows) else 1


def _run(case: str, base: Path, machine: Path) -> list[Row]:
    copy(base, machine)
    torch = read_lock(ROOT / "locks/cpu.txt").torch
    wheel = torch_wheel(torch, machine / "srv/wheels") if case == CASES[0] else None
    if case == CASES[0] and wheel is None:
        fault = "pip's settings on this host offer no CPU wheel of torch for Python 3.11"
        return [Row(f"{case}: {step.name}", 0, "of 1", 1, note=fault) for step in STEPS]
    environment = equip(machine, wheel)
    bundle = ["git", "bundle", "create", "--quiet", str(machine / "srv/tributary.bundle"), "HEAD"]
    subprocess.run(bundle, cwd=ROOT, check=True)
    try:
        run_steps(machine, environment, BUILD / f"fresh-{case.replace(' ', '-')}.log")
        return rows_of(case, machine)
    finally:
        shutil.rmtree(machine)


def _demand() -> None:
    missing = [
        tool for tool in ("debootstrap", "setpriv", "unshare", "chroot") if not shutil.which(tool)
    ]
    if missing:
        sys.exit(
            f"`make fresh` needs {', '.join(missing)}: `apt-get install debootstrap util-linux`"
        )
    if os.geteuid() != 0:
        sys.exit("`make fresh` needs root, to build a Debian and to enter it: `sudo make fresh`")


if __name__ == "__main__":
    sys.exit(main())
