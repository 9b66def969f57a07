"""The library reasoning-gym, also where pycosat is missing.

pycosat has no wheel, so a machine without a compiler cannot have it. The library imports it at its
start, and needs it for one dataset.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any, Never

from infra.errors import InputError

PYCOSAT = "pycosat==0.6.6"


def load_reasoning_gym() -> Any:
    try:
        importlib.import_module("pycosat")
    except ImportError:
        sys.modules["pycosat"] = _without_solver()
    return importlib.import_module("reasoning_gym")


def _without_solver() -> ModuleType:
    module = ModuleType("pycosat")
    vars(module)["itersolve"] = _refuse
    return module


def _refuse(*_: object) -> Never:
    raise InputError(
        "this dataset of reasoning-gym (zebra_puzzles, or one made of it) needs the package "
        "pycosat, which has to be compiled. Choose another dataset, or install a C compiler and "
        "Python's headers (Debian: `apt-get install gcc python3-dev`), then "
        f"`build/uv/bin/uv pip install --python .venv/bin/python {PYCOSAT}`."
    )
