"""What several end-to-end tests start from."""

from __future__ import annotations

from typing import Any

import pytest

from flows.load import load_recipe
from tests.parts.machine import SMOKE, Machine, settings
from tests.parts.page import Page


@pytest.fixture
def page(machine: Machine) -> Page:
    return Page(machine)


@pytest.fixture
def smoke(machine: Machine) -> dict[str, Any]:
    """The recipe whose stages are stored, as JSON."""
    if not machine.run_id("first"):
        machine.call("run", "cpu-smoke", *settings("first", 0))
    return load_recipe("cpu-smoke", SMOKE).model_dump(mode="json")
