"""What several end-to-end tests start from."""

from __future__ import annotations

from typing import Any

import pytest

from flows.load import load_recipe
from tests.machine import STORE, Machine


@pytest.fixture
def smoke(machine: Machine) -> dict[str, Any]:
    """The recipe whose stages are stored, as JSON."""
    if not machine.run_id("first"):
        machine.call("run", "cpu-smoke", "--name", "first", "--set", f"storage.root={STORE}")
    return load_recipe("cpu-smoke", [f"storage.root={STORE}"]).model_dump(mode="json")
