"""Secrets for a job, passed in a file that nobody else can read.

Ray shows the environment that a job is given to all who reach its dashboard, so secrets go by a
file that only its owner may read, in the folder of sockets. The job removes it as it starts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from infra.home import runtime_dir


def hand_over(job: str, secrets: Mapping[str, str]) -> None:
    """Leave environment variables for a job that is about to be submitted."""
    if not secrets:
        return
    path = _path(job)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(dict(secrets), file)


def take_over(job: str) -> None:
    """In the job: put what was left for it in its environment, and remove it."""
    try:
        secrets: dict[str, str] = json.loads(_path(job).read_text())
    except FileNotFoundError:
        return
    withdraw(job)
    os.environ.update(secrets)


def withdraw(job: str) -> None:
    """Remove what was left for a job that may never have started."""
    _path(job).unlink(missing_ok=True)


def _path(job: str) -> Path:
    return runtime_dir() / "handover" / job
