"""Clients to test against, beside the environment: `.ci/run` puts their packages there."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

BESIDE = Path(__file__).parents[2] / "build/clients"
PACKAGES = ("anthropic==2.12.0", "docstring-parser==0.18.0")


def client(name: str) -> ModuleType:
    """Skips the test where the package is not installed."""
    if importlib.util.find_spec(name) is None and BESIDE.is_dir():
        sys.path.append(str(BESIDE))
    how = f"pip install --no-deps --target build/clients {' '.join(PACKAGES)}"
    return pytest.importorskip(name, reason=f"{name} is not there: {how}")
