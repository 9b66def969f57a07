"""One stack, and one S3 server beside it, for all end-to-end tests."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest

from flows.load import load_recipe
from infra.ports import free_ports
from tests.e2e.machine import BUCKET, STORE, Machine, until


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A moto server in a process of its own, with a bucket."""
    port = free_ports(1)[0]
    log = (tmp_path_factory.mktemp("s3") / "moto.log").open("wb")
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-p", str(port)], stdout=log, stderr=log
    )
    url = f"http://127.0.0.1:{port}"
    try:
        until(lambda: _answers(url), 60)
        httpx.put(f"{url}/{BUCKET}").raise_for_status()
        yield url
    finally:
        server.terminate()
        server.wait(20)
        log.close()


@pytest.fixture(scope="session")
def command_lines() -> Iterator[set[str]]:
    """Grows by the arguments of every process that runs meanwhile."""
    seen: set[str] = set()
    over = threading.Event()

    def watch() -> None:
        while not over.wait(1.0):
            for process in psutil.process_iter(["cmdline", "name"]):
                seen.add(" ".join(process.info["cmdline"] or [process.info["name"] or ""]))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


@pytest.fixture(scope="session")
def machine(
    tmp_path_factory: pytest.TempPathFactory, s3: str, command_lines: set[str]
) -> Iterator[Machine]:
    del command_lines  # it watches from the first process on
    home = tmp_path_factory.mktemp("home")
    machine = Machine(home, s3)
    try:
        machine.call("up", timeout=300)
        yield machine
    finally:
        subprocess.run([machine.program, "down"], env=machine.env, timeout=180, check=False)
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def smoke(machine: Machine) -> dict[str, Any]:
    """The recipe whose stages are stored, as JSON."""
    if not machine.run_id("first"):
        machine.call("run", "cpu-smoke", "--name", "first", "--set", f"storage.root={STORE}")
    return load_recipe("cpu-smoke", [f"storage.root={STORE}"]).model_dump(mode="json")


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2).status_code < 500
    except httpx.HTTPError:
        return False
