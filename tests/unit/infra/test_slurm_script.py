"""The Slurm script, run by a real shell with commands that note when they are called."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from infra.home import SOURCE_ROOT
from tests.parts.machine import until

pytestmark = pytest.mark.unit

SAY = 'echo "$(basename "$0") $*" >> "$NOTES"\n'


def script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/usr/bin/env bash\n{SAY}{text}")
    path.chmod(0o755)


def test_a_job_is_put_back_into_the_queue_once_its_stack_is_down(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    until_cancelled = 'for i in $(seq 600); do test -e "$NOTES.end" && exit; sleep .1; done'
    does = f'test "$1" != cancel || touch "$NOTES.end"\ntest "$1" != run || {until_cancelled}\n'
    script(tmp_path / ".venv/bin/tributary", does)
    script(tmp_path / "bin/scontrol", "")
    shutil.copy(SOURCE_ROOT / "infra/slurm/run.sbatch", tmp_path)
    env = os.environ | {
        "PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "NOTES": str(notes), "SLURM_JOB_ID": "7",
        "TRIBUTARY_HOME": str(tmp_path / "home"),
    }  # fmt: skip
    job = subprocess.Popen(["bash", "run.sbatch", "recipe.yaml"], cwd=tmp_path, env=env)
    try:
        until(lambda: notes.is_file() and "tributary run" in notes.read_text(), 30)
        job.send_signal(signal.SIGUSR1)
        assert job.wait(30) == 0
    finally:
        job.kill()
        notes.with_name("notes.end").touch()
    assert notes.read_text().splitlines() == [
        "tributary up",
        "tributary run recipe.yaml --name slurm-7",
        "tributary cancel slurm-7",
        "tributary down",
        "scontrol requeue 7",
    ]
