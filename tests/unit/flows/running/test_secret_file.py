"""Secrets on their way to a job: seen by it alone, once, and by no one who asks for its work."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.recipe import Storage
from flows.running.secrets import block_secrets
from infra.errors import InfrastructureError
from infra.home import runtime_dir
from infra.processes.secret_file import hand_over, take_over, withdraw

pytestmark = pytest.mark.unit

SECRET = {"A_TOKEN": "planted-7d31"}


@pytest.fixture(autouse=True)
def handed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where secrets of this test's own home are left."""
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("A_TOKEN", "before")
    folder = runtime_dir() / "handover"
    yield folder
    if folder.exists():
        shutil.rmtree(folder)
        folder.parent.rmdir()


def test_a_job_takes_what_was_left_for_it_and_leaves_nothing(handed: Path) -> None:
    hand_over("job-1", SECRET)
    (file,) = handed.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert handed.stat().st_mode & 0o777 == 0o700
    take_over("job-2")
    assert os.environ["A_TOKEN"] == "before"
    take_over("job-1")
    assert os.environ["A_TOKEN"] == "planted-7d31"
    assert list(handed.iterdir()) == []


def test_what_no_job_took_is_withdrawn(handed: Path) -> None:
    hand_over("job-1", SECRET)
    withdraw("job-1")
    withdraw("job-1")
    assert list(handed.iterdir()) == []


def test_without_secrets_nothing_is_written(handed: Path) -> None:
    hand_over("job-1", {})
    assert not handed.exists()


def test_a_block_needs_the_stack_that_holds_it() -> None:
    assert block_secrets("") == {}
    with pytest.raises(InfrastructureError, match=r"`lab-s3`.*tributary up"):
        block_secrets("lab-s3")


@pytest.mark.parametrize("name", ["Lab", "lab/s3", "lab s3", "-lab"])
def test_a_block_has_a_name_that_prefect_takes(name: str) -> None:
    with pytest.raises(ValueError, match="credentials"):
        Storage(credentials=name)
