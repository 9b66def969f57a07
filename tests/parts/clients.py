"""Clients and harnesses to test against, beside the environment: `make clients` puts them there."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

import pytest

BESIDE = Path(__file__).parents[2] / "build/clients"
NPM = BESIDE.parent / "clients-npm"
LIBRARIES = BESIDE.parent / "libraries"
TASKS = Path(__file__).parent / "libraries"
"""environments and tasks to test with"""


def client(name: str) -> ModuleType:
    """Skips the test where the package is not installed."""
    _add_packages_beside()
    return pytest.importorskip(name, reason=f"{name} is not there: make clients")


def python_harness(module: str) -> tuple[list[str], list[str], dict[str, str]]:
    """Command, folders to read and environment of one that is a module. Skips the test where it is
    not installed."""
    _add_packages_beside()
    if importlib.util.find_spec(module.partition(".")[0]) is None:
        pytest.skip(f"{module} is not there: make clients")
    folders = [str(BESIDE), sysconfig.get_path("purelib")]
    command = [os.path.realpath(sys.executable), "-m", module]
    return command, folders, {"PYTHONPATH": ":".join(folders)}


def npm_program(pattern: str) -> tuple[str, list[str]]:
    """The program at `pattern` below the npm packages, and the folders that it reads. Skips the
    test where it is not installed."""
    found = sorted(NPM.glob(f"node_modules/{pattern}"))
    if not found:
        pytest.skip(f"{pattern} is not there: make clients (needs npm)")
    return str(found[0]), [str(NPM)]


def own_program(name: str) -> tuple[list[str], list[str]]:
    """Command and folders of a program that the user has installed. Skips the test where it is not
    there: these tests do not install it."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"no command `{name}` here, and the tests do not install it")
    program = os.path.realpath(found)
    folders = [os.path.dirname(program)]
    with open(program, "rb") as opened:
        if not opened.readline(64).rstrip().endswith(b"node"):
            return [program], folders
    node = os.path.realpath(shutil.which("node") or "node")
    return [node, program], [*folders, os.path.dirname(node)]


def library(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Puts a library of environments on the path, for processes that a test starts, with what is
    tested of it. Skips the test where it is not installed."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(LIBRARIES), str(TASKS)])
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not there: make clients")


def _add_packages_beside() -> None:
    if BESIDE.is_dir() and str(BESIDE) not in sys.path:
        sys.path.append(str(BESIDE))
