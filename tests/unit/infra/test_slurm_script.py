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


def put_script(folder: Path) -> dict[str, str]:
    """The script in its folder; -> the environment that Slurm would run it in."""
    shutil.copy(SOURCE_ROOT / "infra/slurm/run.sbatch", folder)
    return os.environ | {
        "PATH": f"{folder}/bin:{os.environ['PATH']}", "NOTES": str(folder / "notes"),
        "SLURM_JOB_ID": "7", "TRIBUTARY_HOME": str(folder / "home"),
    }  # fmt: skip


def test_a_job_is_put_back_into_the_queue_once_its_stack_is_down(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    until_cancelled = 'for i in $(seq 600); do test -e "$NOTES.end" && exit; sleep .1; done'
    does = f'test "$1" != cancel || touch "$NOTES.end"\ntest "$1" != run || {until_cancelled}\n'
    script(tmp_path / ".venv/bin/tributary", does)
    script(tmp_path / "bin/scontrol", "")
    env = put_script(tmp_path)
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


@pytest.mark.parametrize(
    ("on_record", "does"),
    [
        ("slurm-7-20260101-000000-ab12.json", "tributary resume slurm-7"),
        ("slurm-77-20260101-000000-ab12.json", "tributary run recipe.yaml --name slurm-7"),
    ],
)
def test_a_job_that_was_put_back_resumes_its_run_once_it_has_one(
    on_record: str, does: str, tmp_path: Path
) -> None:
    script(tmp_path / ".venv/bin/tributary", "")
    (tmp_path / "home/runs").mkdir(parents=True)
    (tmp_path / "home/runs" / on_record).touch()
    env = put_script(tmp_path) | {"SLURM_RESTART_COUNT": "1"}
    command = ["bash", "run.sbatch", "recipe.yaml"]
    subprocess.run(command, cwd=tmp_path, env=env, timeout=30, check=True)
    said = (tmp_path / "notes").read_text().splitlines()
    assert said == ["tributary up", does, "tributary down"]
