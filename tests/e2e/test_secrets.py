"""A planted secret: used by every part that reaches the store, and written down by none."""

from __future__ import annotations

import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from infra.home import runtime_dir
from tests.e2e.machine import BUCKET, Machine, settings, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

SECRETS = {
    "AWS_SECRET_ACCESS_KEY": "planted-key-7f3a91c2",
    "AWS_SESSION_TOKEN": "planted-token-b8d204e6",
}


class CommandLines:
    """Collects the arguments of every process of the machine, for as long as it is open."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        while not self._over.wait(0.3):
            for process in psutil.process_iter(["cmdline", "name"]):
                self.seen.add(" ".join(process.info["cmdline"] or [process.info["name"] or ""]))

    def __enter__(self) -> CommandLines:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


@pytest.fixture
def secretive(
    tmp_path_factory: pytest.TempPathFactory, s3: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Machine]:
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("TRIBUTARY_HOME", str(home))
    machine = Machine(home, s3)
    machine.env |= SECRETS
    try:
        yield machine
    finally:
        subprocess.run([machine.program, "down"], env=machine.env, timeout=180, check=False)
        shutil.rmtree(home, ignore_errors=True)


def test_a_planted_secret_is_nowhere(secretive: Machine) -> None:
    machine = secretive
    with CommandLines() as lines:
        said = machine.call("up", timeout=300)
        command = subprocess.Popen(
            [machine.program, "run", "cpu-smoke", *settings("secret", 3)],
            env=machine.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip
        try:
            until(lambda: bool(machine.stage("secret", "base").get("artifact")), 300)
            ray = httpx.get(f"http://127.0.0.1:{machine.port('ray_dashboard')}/api/jobs/").text
            command.send_signal(signal.SIGINT)  # lets go; `down` ends what runs
            said += command.communicate(timeout=60)[0]
        finally:
            if command.poll() is None:
                command.kill()
        said += machine.call("check", "cpu-smoke", *settings("x", 3)[2:], timeout=120)
        said += machine.call("report", "secret", "--json", timeout=120)

    assert any("tasks.job" in line for line in lines.seen), "a stage ran while we looked"
    assert '"submission_id"' in ray
    stores = {entry["Key"] for entry in _objects(machine)}
    assert any(key.endswith("manifest.json") for key in stores)
    places = [Path(machine.env["TRIBUTARY_HOME"]), runtime_dir()]
    files = [file for place in places for file in place.rglob("*") if file.is_file()]
    assert {"mlflow.db", "prefect.db", "stack.json"} <= {file.name for file in files}
    for name, secret in SECRETS.items():
        assert secret not in said + ray, f"{name} is in what was printed or answered"
        assert not [line for line in lines.seen if secret in line], f"{name} is in a command line"
        assert not [file for file in files if secret.encode() in _bytes(file)], f"{name}: in a file"
        found = [entry for entry in _objects(machine) if secret.encode() in _body(machine, entry)]
        assert not found, f"{name} is in the store"


def _objects(machine: Machine) -> list[dict[str, str]]:
    pages = machine.s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
    return [entry for page in pages for entry in page.get("Contents", [])]


def _body(machine: Machine, entry: dict[str, str]) -> bytes:
    return machine.s3.get_object(Bucket=BUCKET, Key=entry["Key"])["Body"].read()


def _bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:  # a log that was rotated away
        return b""
