"""How tests are dealt out to processes, and what any of them may ask for."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import hypothesis
import pytest
from httpx._transports import default as transports
from xdist.scheduler import LoadScopeScheduling

from infra.processes.leftovers import leftovers_of_dead, remove_leftovers
from infra.processes.network import free_ports
from tests.parts.machine import BUCKET, until

# A shell's background job ignores Ctrl-C, and so would every command that a test starts and stops.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Engines and libraries are half a million objects that stay; looking through them for garbage each
# few thousand new ones would take a fifth of the time of the small tests.
gc.set_threshold(50_000, 10, 10)

# Each client of httpx would read the certificates of all authorities, in 30 ms of a processor.
transports.create_ssl_context = cache(transports.create_ssl_context)

# oneDNN reads it once, at its first product: as a server on CPU has it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

# How long an example takes says how busy the machine is.
hypothesis.settings.register_profile("suite", deadline=None)
if hypothesis.settings.get_current_profile_name() == "default":
    hypothesis.settings.load_profile("suite")

_STARTED_FIRST = (
    "tests/e2e/",
    "tests/integration/stages/",
    "tests/integration/sglang/test_fleet.py",
    "tests/integration/sglang/test_server_traces.py",
    "tests/integration/sglang/",
    "tests/integration/megatron/test_rank_leases.py",
    "tests/integration/megatron/",
    "tests/e2e/test_keyed_stack.py",
    "tests/integration/infra/test_postgres.py",
    "tests/integration/infra/test_tracking",
    "tests/integration/infra/test_sandbox",
)
"""beginnings of the paths of files that share a stack, servers or ranks, which each process would
have to start for itself, or that look for what the others leave; the longest that fits counts. Long
ones are first, so that the processes end together."""


@pytest.fixture(autouse=True, scope="session")
def _home_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A home for tests that name none: the user's own is none of their business."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRIBUTARY_HOME", str(tmp_path_factory.mktemp("home-of-tests")))
        yield
        remove_leftovers(leftovers_of_dead())


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home that one test has for itself."""
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


class Folder(pytest.Package):
    """A folder with a conftest: what that shares in the scope `package` ends with the folder's last
    test. In folders that are no packages pytest would keep it until the last test of all."""

    def setup(self) -> None:
        """Nothing: there is no `__init__.py` to run."""


class WholeFiles(LoadScopeScheduling):
    """How xdist deals out tests: a process takes a file at a time, or a group of files.

    xdist's own groups of tests do not work with this pytest: they rename tests by a field that is
    gone.
    """

    def _split_scope(self, nodeid: str) -> str:
        group = _group(nodeid)
        return _STARTED_FIRST[group] if group < len(_STARTED_FIRST) else nodeid.partition("::")[0]


def _group(nodeid: str) -> int:
    """The position of a test's group; those that are in none come last."""
    found = [path for path in _STARTED_FIRST if nodeid.startswith(path)]
    return _STARTED_FIRST.index(max(found, key=len)) if found else len(_STARTED_FIRST)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _group(item.nodeid))
    gc.collect()
    gc.freeze()


def pytest_collect_directory(path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    return Folder.from_parent(parent, path=path) if (path / "conftest.py").exists() else None


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> WholeFiles:
    return WholeFiles(config, log)


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
        server.kill()
        server.wait(20)
        log.close()


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2).status_code < 500
    except httpx.HTTPError:
        return False
