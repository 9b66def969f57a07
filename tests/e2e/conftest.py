"""One stack, and one S3 server beside it, for all end-to-end tests."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest

from infra.ports import free_ports
from tests.e2e.machine import BUCKET, Machine, until


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
def machine(tmp_path_factory: pytest.TempPathFactory, s3: str) -> Iterator[Machine]:
    home = tmp_path_factory.mktemp("home")
    machine = Machine(home, s3)
    try:
        machine.call("up", timeout=300)
        yield machine
    finally:
        subprocess.run([machine.program, "down"], env=machine.env, timeout=180, check=False)
        shutil.rmtree(home, ignore_errors=True)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2).status_code < 500
    except httpx.HTTPError:
        return False
