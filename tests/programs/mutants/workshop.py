"""A copy of the repository in which mutants are tried, and what is known of its tests."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.programs.mutants.mutations import Mutant, changed_source
from tests.programs.mutants.reach import Reach
from tests.programs.mutants.subject import IN_RANKS
from tests.programs.mutants.trial import Bounds, load_libraries, try_mutant, use_few_examples
from tests.programs.mutants.watch import watched_reach

COPIED = ("flows", "tasks", "curricula", "rewards", "engines", "infra", "tests", "examples", "docs",
          "pyproject.toml", "Makefile", "README.md", "AGENTS.md", "prefect.yaml")  # fmt: skip


@contextmanager
def workshop(files: Sequence[str], sources: dict[str, str]) -> Generator[Workshop]:
    """Everything runs in the copy while the block lasts; what killed tests leave goes with it."""
    root = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Path(folder).resolve()
        _fill(copy, root)
        os.chdir(copy)
        try:
            load_libraries(files)
            use_few_examples()
            made = Workshop(copy, sources, watched_reach(root, copy, files, sources))
            # Compiles the tests, too.
            made.check_control()
            _forget_compiled(copy, sources)
            yield made
        finally:
            os.chdir(root)


class Workshop:
    def __init__(self, copy: Path, sources: dict[str, str], reach: Reach) -> None:
        self._copy, self._sources, self._reach = copy, sources, reach
        self._kills: Counter[tuple[str, str]] = Counter()
        """by mutated file and test file"""

    def killer_of(self, mutant: Mutant) -> str | None:
        """The test that killed it, `timeout`, or None: it survived."""
        original = self._sources[mutant.file]
        stages = self._reach.tests_of(mutant, original, IN_RANKS.get(mutant.file))
        # Those first that killed most of this file's; else the cheapest.
        stages.sort(key=lambda nodes: -self._kills[mutant.file, _file_of(nodes[0])])
        killer = self._try(mutant.file, changed_source(original, mutant.number), stages)
        self._kills[mutant.file, _file_of(killer or "")] += 1
        return killer

    def check_control(self) -> None:
        """A file that is written again unchanged must survive a test of each test file: what
        kills a mutant is the mutant."""
        first = {_file_of(node): [node] for node in sorted(self._reach.seconds)}
        file = sorted(self._sources)[-1]
        killer = self._try(file, self._sources[file], list(first.values()))
        if killer is not None:
            raise SystemExit(f"{killer} fails in a fork without any mutant")

    def _try(self, file: str, changed: str, stages: list[list[str]]) -> str | None:
        usual = sum(self._reach.seconds[node] for nodes in stages for node in nodes)
        return try_mutant(self._copy / file, changed, stages, Bounds.of(usual, len(stages)))


def _file_of(node: str) -> str:
    return node.partition("::")[0]


def _fill(copy: Path, root: Path) -> None:
    for part in COPIED:
        if (root / part).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(root / part, copy / part, ignore=ignored)
        else:
            shutil.copy(root / part, copy / part)
    (copy / "tmp").mkdir()
    tempfile.tempdir = str(copy / "tmp")
    os.environ |= {
        "PYTHONPATH": str(copy),
        "TRIBUTARY_HOME": str(copy / "home"),
        "TMPDIR": str(copy / "tmp"),
    }
    sys.path[:] = [str(copy), *(p for p in sys.path if p not in ("", str(root)))]


def _forget_compiled(copy: Path, sources: dict[str, str]) -> None:
    """A mutant of the same size and second must not be taken for a compiled one."""
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    for file in sources:
        for cached in (copy / file).parent.glob(f"__pycache__/{Path(file).stem}.*"):
            cached.unlink()
