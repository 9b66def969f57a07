"""Keeps which runs a form of Prefect's page asked for that never began, for `tributary runs`."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from infra.config import Config
from infra.home import home

KEPT = 20
"""the newest ones; older ones stay on Prefect's page"""


class RefusedRun(Config):
    asked: str
    """its name, or its recipe's"""
    why: str
    at: float
    """Unix time"""


def put_refused(flow_run: str, refused: RefusedRun) -> None:
    """Keep it; the oldest of too many is forgotten."""
    path = _path(flow_run)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(refused.model_dump_json(indent=1))
    files = sorted(path.parent.glob("*.json"), key=lambda file: file.stat().st_mtime)
    for file in files[:-KEPT]:
        file.unlink(missing_ok=True)


def forget_refused(flow_run: str) -> None:
    """A retry of the flow run began."""
    _path(flow_run).unlink(missing_ok=True)


def refused_runs() -> list[RefusedRun]:
    """The newest first. A file that is being written is left out."""
    found: list[RefusedRun] = []
    for file in (home() / "runs" / "refused").glob("*.json"):
        try:
            found.append(RefusedRun.model_validate_json(file.read_bytes()))
        except (ValidationError, FileNotFoundError):
            continue
    return sorted(found, key=lambda refused: refused.at, reverse=True)


def _path(flow_run: str) -> Path:
    return home() / "runs" / "refused" / f"{flow_run}.json"
