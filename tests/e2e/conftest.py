"""What tests of the whole stack start from: one stack, and a recipe that ran on it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from flows.load import load_recipe
from infra.stack import Stack, load_stack
from tests.parts.machine import SMOKE, Machine, settings
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
