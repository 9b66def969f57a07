"""Tasks of other libraries, which pose problems, drive their own rollouts and score them.

    rows ─▶ problems of a curriculum         rollout: asks the policy over HTTP, then scores

A library has state of its own in its process (signal handlers, one event loop, global registries),
so its tasks are never loaded into ours: `read_rows` asks a process that ends with the answer, and
rollouts run in the process of the driver `library`.

reasoning-gym, whose tasks are plain functions, is loaded here, also where pycosat is missing: that
has no wheel, so a machine without a compiler cannot have it, and only one dataset needs it.
"""

from __future__ import annotations

import functools
import importlib
import json
import math
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Never, Protocol

from infra.errors import BAD_INPUT, InputError
from infra.secret_references import for_part

VERIFIERS, INSPECT = "verifiers", "inspect"
SCORE_FILE = "score.json"
"""an `Outcome`, among what the driver collects for rewards"""
_TASKS: Mapping[str, tuple[str, str]] = {
    VERIFIERS: ("infra.libraries.verifiers_environment", "VerifiersEnvironment"),
    INSPECT: ("infra.libraries.inspect_task", "InspectTask"),
}
_INSTALL = "build/uv/bin/uv pip install --python .venv/bin/python --no-deps -r locks/libraries.txt"
_READ_S = 600.0
"""what the imports of a library may take, and loading a task's data"""
_COMMAND = "import sys; from infra.libraries.library import main; sys.exit(main(*sys.argv[1:]))"
_SHOWN = 600
PYCOSAT = "pycosat==0.6.6"


@dataclass(frozen=True, slots=True)
class Row:
    """One problem of a task."""

    messages: Sequence[tuple[str, str]]
    """role and text of what the policy is asked"""
    is_held_out: bool | None
    """whether it is only for evaluation; None: the task does not say"""
    content: dict[str, Any]
    """the whole row, as JSON"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a rollout."""

    score: float | None = None
    """the task's own; None where it gave none"""
    parts: dict[str, float] = field(default_factory=dict[str, float])
    """its metrics, or the values of its scorers"""
    error: str = ""
    is_late: bool = False
    """whether it ran out of time"""


def outcome_of(
    score: float | None, parts: Mapping[str, float], *, error: str = "", is_late: bool = False
) -> Outcome:
    """Numbers that are not finite are none."""
    is_number = score is not None and math.isfinite(score)
    finite = {name: value for name, value in parts.items() if math.isfinite(value)}
    return Outcome(score if is_number else None, finite, error, is_late)


class LibraryTask(Protocol):
    """What is run of a library."""

    def rows(self) -> Sequence[Row]: ...

    async def rollout(self, content: dict[str, Any], url: str, key: str, seconds: float) -> Outcome:
        """One rollout of a row, with the policy at `url`."""
        ...


class Tasks:
    """The tasks that a process has loaded."""

    def __init__(self) -> None:
        self._loaded: dict[str, LibraryTask] = {}

    async def rollout(
        self, which: Sequence[Any], content: dict[str, Any], url: str, key: str, seconds: float
    ) -> Outcome:
        """`which`: library, name and arguments. Raises InputError for what cannot be loaded."""
        name = json.dumps(which, sort_keys=True)
        if name not in self._loaded:
            self._loaded[name] = load_task(*which)
        return await self._loaded[name].rollout(content, url, key, seconds)


def load_task(library: str, name: str, arguments: Mapping[str, Any]) -> LibraryTask:
    """Load the task in this process: not in one that is a stage's. Raises InputError."""
    module, attribute = _TASKS[library]
    return getattr(importlib.import_module(module), attribute)(name, arguments)


def imported(package: str, module: str) -> ModuleType:
    """Raises InputError that says how to install a library that is missing."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = f", because {error.name} is" if error.name != module else ""
        raise InputError(
            f"the package {package} is not installed{missing}; install it where the flow and the"
            f" stages run: {_INSTALL}"
        ) from error


def cause_of(error: BaseException) -> str:
    """The exception that the others came of: libraries put sentences of their own around it."""
    while error.__cause__ is not None:
        error = error.__cause__
    is_missing = isinstance(error, ModuleNotFoundError)
    hint = "; install it, or list its file under the recipe's `hooks`" if is_missing else ""
    return f"{type(error).__name__}: {error}{hint}"


@functools.lru_cache(maxsize=16)
def read_rows(library: str, name: str, arguments: str) -> Sequence[Row]:
    """The rows of a task, read in a process of its own. `arguments` are JSON. Raises InputError."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "rows.json")
        given = [json.dumps(sys.path), library, name, arguments, str(out)]
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-c", _COMMAND, *given],
                env=for_part(os.environ, json.loads(arguments)), stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace",
                timeout=_READ_S,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise InputError(f"{library} {name!r}: no rows within {_READ_S:g} s") from None
        if done.returncode:
            said = done.stderr.strip()
            why = said.rpartition("\n")[2] if done.returncode == BAD_INPUT else said[-_SHOWN:]
            raise InputError(f"{library} {name!r}: {why}")
        return [Row(**each) for each in json.loads(out.read_text())]


def main(path: str, library: str, name: str, arguments: str, out: str) -> int:
    """Writes the rows of a task. -> exit code; what a person can repair is the last line."""
    sys.path[:] = json.loads(path)
    try:
        rows = load_task(library, name, json.loads(arguments)).rows()
        Path(out).write_text(json.dumps([asdict(row) for row in rows]))
    except InputError as error:
        print(f"\n{' '.join(str(error).split())}", file=sys.stderr)
        return BAD_INPUT
    except TypeError as error:
        print(f"\na row is no JSON: {error}", file=sys.stderr)
        return BAD_INPUT
    return 0


def load_reasoning_gym() -> Any:
    try:
        importlib.import_module("pycosat")
    except ImportError:
        sys.modules["pycosat"] = _without_solver()
    with warnings.catch_warnings():
        # Of what it imports, when Python compiles that for the first time.
        warnings.simplefilter("ignore", SyntaxWarning)
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
