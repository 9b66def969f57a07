"""Secrets for a job, passed in a file that nobody else can read.

Ray shows the environment that a job is given to all who reach its dashboard, so secrets go by a
file that only its owner may read, in the folder of sockets. The job removes it as it starts.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from infra.errors import InputError
from infra.home import own_folder, read_own_file, runtime_dir, write_own_file

_NAME = re.compile(r"[A-Z][A-Z0-9_]*")
_STEERING = ("TRIBUTARY_", "PREFECT_", "RAY_", "MLFLOW_", "PYTHON", "LD_", "PATH", "HOME", "TMPDIR")
"""variables with these prefixes decide what runs and are not secrets"""


def hand_over(job: str, secrets: Mapping[str, str]) -> None:
    """Leave environment variables for a job that is about to be submitted."""
    if not secrets:
        return
    own_folder(runtime_dir())
    own_folder(_path(job).parent)
    write_own_file(_path(job), json.dumps(dict(secrets)))


def take_over(job: str) -> None:
    """Put, in the job, what was left for it in its environment, and remove it.

    Raises InputError for what another user left, or could have changed.
    """
    path = _path(job)
    if not path.parent.exists():
        return
    own_folder(runtime_dir())
    own_folder(path.parent)
    try:
        secrets: dict[str, Any] = json.loads(read_own_file(path))
    except FileNotFoundError:
        return
    withdraw(job)
    if wrong := next(not_secrets(secrets), ""):
        raise InputError(f"{path} would set `{wrong}`, which is no name of a secret")
    os.environ.update(secrets)


def not_secrets(names: Iterable[str]) -> Iterator[str]:
    """Yield the names that may not be set from a secret, as they decide what runs."""
    return (name for name in names if not _NAME.fullmatch(name) or name.startswith(_STEERING))


def withdraw(job: str) -> None:
    """Remove what was left for a job that may never have started."""
    _path(job).unlink(missing_ok=True)


def _path(job: str) -> Path:
    return runtime_dir() / "handover" / job
