"""What the tests reach, by a run of each test file without a mutant; kept in `build/` until that
file or a mutated source changes."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.programs.mutants.digests import digest
from tests.programs.mutants.reach import Reach

KEPT = Path("build/mutants-reach.pickle")


@dataclass(frozen=True, slots=True)
class Watched:
    """One test file."""

    digest: str
    """of it and of the sources"""
    lines: dict[str, dict[int, set[str]]]
    seconds: dict[str, float]


def watched_reach(
    root: Path, copy: Path, files: Sequence[str], sources: Mapping[str, str]
) -> Reach:
    """Runs in a fork what is not known yet, so that this process stays without our modules."""
    wanted = {file: digest([*sources.values(), Path(file).read_text()]) for file in files}
    path = root / KEPT
    known: dict[str, Watched] = pickle.loads(path.read_bytes()) if path.exists() else {}
    known = {f: w for f, w in known.items() if wanted.get(f) == w.digest}
    if missing := [file for file in files if file not in known]:
        _in_a_fork(path, known, {file: wanted[file] for file in missing}, copy, sources)
        return watched_reach(root, copy, files, sources)
    whole = Reach(copy, frozenset(sources))
    for part in known.values():
        whole.add(part.lines, part.seconds)
    return whole


def _in_a_fork(
    path: Path,
    known: Mapping[str, Watched],
    missing: Mapping[str, str],
    copy: Path,
    sources: Mapping[str, str],
) -> None:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            reach = Reach(copy, frozenset(sources))
            plain = ["-q", "-p", "no:cacheprovider", "-W", "ignore", *missing]
            code = int(pytest.main(plain, plugins=[reach]))
            if not code:
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(pickle.dumps({**known, **dict(_by_file(reach, missing))}))
        finally:
            sys.stdout.flush()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.waitstatus_to_exitcode(status):
        raise SystemExit("the tests fail without any mutant; nothing can be measured")


def _by_file(reach: Reach, digests: Mapping[str, str]) -> Iterator[tuple[str, Watched]]:
    for file, made in digests.items():
        mine = {node for node in reach.seconds if node.partition("::")[0] == file}
        lines = {
            source: {line: nodes & mine for line, nodes in by_line.items()}
            for source, by_line in reach.lines.items()
        }
        yield file, Watched(made, lines, {node: reach.seconds[node] for node in mine})
