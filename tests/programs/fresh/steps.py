"""The commands of a newcomer, run one after the other as an ordinary user of the plain machine."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import NamedTuple

from tests.programs.bench.rows import Row
from tests.programs.fresh.debian import ALONE

USER = "newcomer"
LIMIT_S = 3 * 3600.0
RECORD = Path("srv/steps.jsonl")


class Step(NamedTuple):
    name: str
    command: str


STEPS = (
    Step("no compiler", "! command -v cc gcc c++ clang"),
    Step("clone", "git clone --quiet /srv/tributary.bundle tributary"),
    Step("make install", "make -C tributary install"),
    Step("doctor", "tributary/.venv/bin/tributary doctor"),
    Step("up", "tributary/.venv/bin/tributary up"),
    Step("cpu-smoke", "tributary/.venv/bin/tributary run cpu-smoke"),
    Step("down", "tributary/.venv/bin/tributary down"),
)


def run_steps(machine: Path, environment: dict[str, str], log: Path) -> None:
    """Up to the first that fails. Processes and mounts are those of one namespace each."""
    folder = shlex.quote(str(machine))
    (machine / "srv/steps.sh").write_text(_script())
    (machine / RECORD).touch(mode=0o666)
    (machine / RECORD).chmod(0o666)
    said = " ".join(shlex.quote(f"{name}={value}") for name, value in environment.items())
    inside = f"""
        mount -t proc proc {folder}/proc
        mount --rbind /sys {folder}/sys
        mount --rbind /dev {folder}/dev
        mount -t tmpfs -o mode=1777 shm {folder}/dev/shm
        chroot {folder} useradd --create-home --shell /bin/bash {USER}
        exec chroot {folder} su {USER} --login --command 'env {said} bash /srv/steps.sh'
    """
    alone = [*ALONE, "bash", "-euc", inside]
    print(f"running in {machine}; output in {log}", flush=True)
    with log.open("w") as out:
        subprocess.run(alone, stdout=out, stderr=out, stdin=subprocess.DEVNULL, timeout=LIMIT_S)


def rows_of(case: str, machine: Path) -> list[Row]:
    """One row a step; a step that was not reached does not hold."""
    done = {
        row["name"]: row for row in map(json.loads, (machine / RECORD).read_text().splitlines())
    }
    rows: list[Row] = []
    for name, _ in STEPS:
        found = done.get(name, {"ok": 0, "seconds": 0, "said": "not reached"})
        note = f"{found['seconds']} s" + (f"; {found['said']}" if found["said"] else "")
        rows.append(Row(f"{case}: {name}", found["ok"], "of 1", 1, note=note))
    return rows


def _script() -> str:
    lines = ["set -u", "cd"]
    for name, command in STEPS:
        lines += [
            f"echo '== {name}'; start=$SECONDS",
            f"( {command} ) >step.log 2>&1 && ok=1 || ok=0; cat step.log",
            "said=$(grep '^install: torch' step.log | tail -1 | tr -d '\"\\\\')",
            f'printf \'{{"name": "{name}", "ok": %d, "seconds": %d, "said": "%s"}}\\n\' '
            f'$ok $((SECONDS - start)) "$said" >> /{RECORD}',
            "[ $ok = 1 ] || exit 1",
        ]
    return "\n".join(lines) + "\n"
