"""How tests are dealt out to processes, and what any of them may ask for."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling

from infra.processes.leftovers import leftovers_of_dead, remove_leftovers
from infra.processes.ports import free_ports
from tests.parts.machine import BUCKET, SECRETS, until

# A shell's background job ignores Ctrl-C, and so would every command that a test starts and stops.
signal.signal(signal.SIGINT, signal.default_int_handler)


# oneDNN reads it once, at its first product: as a server on CPU has it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

# How long an example takes says how busy the machine is.
hypothesis.settings.register_profile("suite", deadline=None)
if hypothesis.settings.get_current_profile_name() == "default":
    hypothesis.settings.load_profile("suite")

_STARTED_FIRST = (
    "tests/e2e/",
    "tests/integration/stages/",
    "tests/e2e/test_keyed_stack.py",
    "tests/integration/sglang/test_fleet.py",
    "tests/integration/sglang/test_server_traces.py",
    "tests/integration/sglang/",
    "tests/integration/megatron/test_rank_leases.py",
    "tests/integration/megatron/",
    "tests/integration/infra/test_postgres.py",
    "tests/integration/infra/test_tracking",
    "tests/integration/infra/test_sandbox",
)
"""beginnings of the paths of files that share a stack, servers or ranks, which each process would
have to start for itself, or that look for what the others leave; the longest that fits counts. Long
ones are first, so that the processes end together."""


@pytest.fixture(autouse=True, scope="session")
def _home_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:  # pyright: ignore
    """A home for tests that name none: the user's own is none of their business."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRIBUTARY_HOME", str(tmp_path_factory.mktemp("home-of-tests")))
        yield
        remove_leftovers(leftovers_of_dead())


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
        server.terminate()
        server.wait(20)
        log.close()


@pytest.fixture(scope="session")
def command_lines(secret_holders: dict[str, set[tuple[str, str]]]) -> Iterator[set[str]]:
    """Grows by the arguments of every process that runs meanwhile."""
    seen: set[str] = set()
    over = threading.Event()
    tests = {os.getpid(), os.getppid()}  # and the other worker's, which has the same parent

    def watch() -> None:
        while not over.wait(1.0):
            for process in Path("/proc").glob("[0-9]*"):
                with suppress(OSError):  # it ended meanwhile
                    line = _words(process / "cmdline")
                    seen.add(line)
                    if not line or tests & _ancestors(int(process.name)):
                        continue  # between two programs; or a test gave it what it has
                    environment = _words(process / "environ")
                    home = re.search(r"(?:^| )TRIBUTARY_HOME=(\S+)", environment)
                    for name, secret in SECRETS.items():
                        if secret in environment:
                            secret_holders[name].add((home[1] if home else "", line))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


@pytest.fixture(scope="session")
def secret_holders() -> dict[str, set[tuple[str, str]]]:
    """By planted secret the homes and arguments of processes that were started with it in their
    environment, as `command_lines` sees them."""
    return {name: set() for name in SECRETS}


def _ancestors(process: int) -> set[int]:
    found: set[int] = set()
    while process > 1:
        words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        process = int(words[1])
        found.add(process)
    return found


def _words(file: Path) -> str:
    return file.read_bytes().replace(b"\0", b" ").decode(errors="replace")


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2).status_code < 500
    except httpx.HTTPError:
        return False
