"""A planted secret: used by every part that reaches the store, and written down by none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from infra.home import runtime_dir
from tests.parts.machine import BUCKET, SECRETS, Machine, settings

STARTERS = (
    "bin/tributary ",
    "prefect worker",
    "bin/prefect ",
    "prefect.runner",
    "prefect/runner/",
    "prefect.engine",
)
"""in the arguments of commands, of the worker, and of flows with their hooks"""

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def test_a_planted_secret_is_nowhere(
    machine: Machine,
    smoke: dict[str, Any],
    command_lines: set[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    del smoke  # there has been a run, at least that one
    monkeypatch.setenv("TRIBUTARY_HOME", machine.env["TRIBUTARY_HOME"])
    machine.call("check", "cpu-smoke", *settings("x", 3)[2:], timeout=120)
    machine.call("report", "first", "--json", timeout=120)
    ray = httpx.get(
        f"http://127.0.0.1:{machine.port('ray_dashboard')}/api/jobs/", headers=machine.bearer
    ).text

    assert any("tasks.durable.job" in line for line in command_lines), "a stage ran while we looked"
    assert '"submission_id"' in ray
    assert any(key.endswith("manifest.json") for key in _objects(machine))
    places = [Path(machine.env["TRIBUTARY_HOME"]), runtime_dir()]
    files = [file for place in places for file in place.rglob("*") if file.is_file()]
    assert {"mlflow.db", "prefect.db", "stack.json"} <= {file.name for file in files}
    said = "".join(machine.said) + ray
    for name, secret in SECRETS.items():
        assert secret not in said, f"{name} is in what was printed or answered"
        assert not [line for line in command_lines if secret in line], f"{name}: a command line"
    assert [found for file in files if (found := _secrets(file, _bytes(file)))] == []
    bodies = ((key, _body(machine, key)) for key in _objects(machine))
    assert [found for key, body in bodies if (found := _secrets(key, body))] == []


def test_only_what_starts_jobs_has_secrets_that_jobs_do_not_all_need(
    machine: Machine, smoke: dict[str, Any], secret_holders: dict[str, set[tuple[str, str]]]
) -> None:
    """A person's command has them, and Prefect's worker, which starts flows. Ray, its workers, the
    servers of models, MLflow and Prefect's own server have the store's at most."""
    del smoke
    own = machine.env["TRIBUTARY_HOME"]
    for name, found in secret_holders.items():
        # Chromium's own watchers leave the browser that a test started.
        holders = [line for home, line in found if home == own and "chromium" not in line]
        if name.startswith("AWS_"):
            others = [line for line in holders if "uvicorn" in line or "mlflow" in line]
            assert [line for line in holders if "ray::" in line], "Ray's workers were looked at"
        else:
            others = [line for line in holders if not any(part in line for part in STARTERS)]
        assert holders, f"{name}: nobody was started with it while we looked"
        assert not others, f"{name}: {sorted(others)}"


def _secrets(place: Path | str, data: bytes) -> list[str]:
    """The names of the secrets in the data, with the place; empty for none."""
    return [f"{name} in {place}" for name, secret in SECRETS.items() if secret.encode() in data]


def _objects(machine: Machine) -> list[str]:
    pages = machine.s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
    return [entry["Key"] for page in pages for entry in page.get("Contents", [])]


def _body(machine: Machine, key: str) -> bytes:
    return machine.s3.get_object(Bucket=BUCKET, Key=key)["Body"].read()


def _bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:  # a log that was rotated away
        return b""
