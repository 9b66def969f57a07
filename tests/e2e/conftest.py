"""What tests of the whole stack start from: one stack, and a recipe that ran on it."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from flows.load import load_recipe
from infra.stack import Stack, load_stack
from tests.parts.machine import SECRETS, SMOKE, Machine, settings
from tests.parts.page import Page


@pytest.fixture(scope="package")
def machine(
    tmp_path_factory: pytest.TempPathFactory, s3: str, command_lines: set[str]
) -> Iterator[Machine]:
    """The one that all tests of the stack share; it ends with the last of them."""
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


@pytest.fixture
def page(machine: Machine) -> Page:
    return Page(machine)


@pytest.fixture
def smoke(machine: Machine) -> dict[str, Any]:
    """The recipe whose stages are stored, as JSON."""
    if not machine.run_id("first"):
        machine.call("run", "cpu-smoke", *settings("first", 0))
    return load_recipe("cpu-smoke", SMOKE).model_dump(mode="json")


@pytest.fixture(scope="package")
def command_lines(secret_holders: dict[str, set[tuple[str, str]]]) -> Iterator[set[str]]:
    """Grows by the arguments of every process that runs meanwhile."""
    seen: set[str] = set()
    known: set[tuple[str, str]] = set()
    over = threading.Event()
    tests = {os.getpid(), os.getppid()}  # and the other worker's, which has the same parent

    def watch() -> None:
        while not over.wait(1.0):
            for process in Path("/proc").glob("[0-9]*"):
                with suppress(OSError):  # it ended meanwhile
                    line = _words(process / "cmdline")
                    if (process.name, line) in known:
                        continue  # a program keeps what it was started with
                    seen.add(line)
                    known.add((process.name, line))
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


@pytest.fixture(scope="package")
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
