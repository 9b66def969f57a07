"""What any test may ask for: the whole local stack, started once and always ended."""

from __future__ import annotations

import os
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
from infra.stack import Stack, load_stack
from tests.parts.machine import BUCKET, Machine, until

# A shell's background job ignores Ctrl-C, and so would every command that a test starts and stops.
signal.signal(signal.SIGINT, signal.default_int_handler)


# oneDNN reads it once, at its first product: as a server on CPU has it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

# How long an example takes says how busy the machine is.
hypothesis.settings.register_profile("suite", deadline=None)
if hypothesis.settings.get_current_profile_name() == "default":
    hypothesis.settings.load_profile("suite")

_TOGETHER = (
    {"test_smoke.py", "test_started_by_page.py", "test_written_secrets.py"}
    | {"test_page_in_browser.py", "test_prefect_page.py"}
    | {"test_stack.py", "test_cluster.py"},
    {"test_rl_exact.py", "test_rl_stage.py", "test_sft_stage.py"},
    {"test_sandbox.py", "test_sandbox_attacks.py"},
    {"test_sglang_exact.py", "test_sglang_generation.py", "test_weights.py"},
    {f"test_megatron_{name}.py" for name in ("batches", "checkpoint", "critic", "parity")},
)
"""files that share servers or ranks, which each process would have to start for itself, or that
look for what the other leaves"""


@pytest.fixture(autouse=True, scope="session")
def _home_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:  # pyright: ignore
    """A home for tests that name none: the user's own is none of their business."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRIBUTARY_HOME", str(tmp_path_factory.mktemp("home-of-tests")))
        yield
        remove_leftovers(leftovers_of_dead())


class WholeFiles(LoadScopeScheduling):
    """How xdist deals out tests: a process takes a file at a time, or files that belong together.

    xdist's own groups of tests do not work with this pytest: they rename tests by a field that is
    gone.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        name = Path(file).name
        return next((min(files) for files in _TOGETHER if name in files), file)


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
def command_lines() -> Iterator[set[str]]:
    """Grows by the arguments of every process that runs meanwhile."""
    seen: set[str] = set()
    over = threading.Event()

    def watch() -> None:
        while not over.wait(1.0):
            for file in Path("/proc").glob("[0-9]*/cmdline"):
                with suppress(OSError):  # it ended meanwhile
                    seen.add(file.read_bytes().replace(b"\0", b" ").decode(errors="replace"))

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
    """The one that all tests of the stack share."""
    del command_lines  # it watches from the first process on
    with Machine(tmp_path_factory.mktemp("home"), s3).running() as machine:
        yield machine


@pytest.fixture
def stack(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Stack:
    """Its stack, with TRIBUTARY_HOME, PREFECT_API_URL, RAY_ADDRESS, ... set to it."""
    monkeypatch.setenv("TRIBUTARY_HOME", machine.env["TRIBUTARY_HOME"])
    running = load_stack()
    assert running is not None
    for name, value in (machine.env | running.env()).items():
        monkeypatch.setenv(name, value)
    return running


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2).status_code < 500
    except httpx.HTTPError:
        return False
