"""`make mutants`: changes the algorithms in small wrong ways and counts what the tests notice.

Usage: python -m tests.mutants [--sample N] [--seed N] [--seconds N] [--file PART]. Outcomes are
kept in `build/mutants.jsonl`, so that a run goes on where the last one ended. Prints the survivors
and writes `build/mutants.json`. Exit 1 if the score of the tried ones is below the floor, or if
some were not tried.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import pickle
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.bench.rows import Row, show, write
from tests.mutants.mutations import Mutant, changed_source, mutants
from tests.mutants.reach import Reach
from tests.mutants.record import digests_of, keep, key_of, known, outcome
from tests.mutants.survivors import is_equivalent, said_of
from tests.mutants.trial import load_libraries, try_mutant, use_few_examples

FLOOR = 0.95
RESULT, RECORD = Path("build/mutants.json"), Path("build/mutants.jsonl")
REACH = Path("build/mutants-reach.pickle")
TESTED = ("engines/algorithms", "engines/batching.py")
COPIED = ("flows", "tasks", "curricula", "rewards", "engines", "infra", "tests", "examples", "docs")
TESTS = [
    "advantages",
    "aggregation",
    "corrections",
    "policy_losses",
    "linear_logprobs",
    "linear_logprobs_ranks",
    "rl_batch",
    "algorithm_defaults",
    "algorithm_spec",
    "batching",
    "algorithms",
    "hook_contract",
]
LEFT_OUT = ("test_trl.py", "test_table.py")
"""loads TRL anew for each mutant; looks at pages"""
BOUND = 30.0
"""seconds of tests for one mutant, beside what those tests take"""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("--sample", type=int, help="how many mutants; left out: all")
    parser.add_argument("--seed", type=int, default=0, help="of the sample and the order")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after these")
    parser.add_argument("--file", default="", help="only files whose path holds this")
    wanted = parser.parse_args(arguments)
    os.nice(max(0, 10 - os.nice(0)))
    for name in ("OMP_NUM_THREADS", "TORCH_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    return _measure(wanted)


def _measure(wanted: argparse.Namespace) -> int:
    began = time.monotonic()
    root = Path.cwd()
    sources = {str(f): f.read_text() for part in TESTED for f in _python(Path(part))}
    every = [
        mutant
        for file, text in sources.items()
        if wanted.file in file
        for mutant in mutants(file, text)
    ]
    random.Random(wanted.seed).shuffle(every)
    chosen = every[: wanted.sample]
    files = [f"tests/unit/test_{name}.py" for name in TESTS]
    proofs = sorted(map(str, Path("tests/proof").glob("test_*.py")))
    files += [file for file in proofs if not file.endswith(LEFT_OUT)]
    digests = digests_of(files)
    found = known(RECORD, digests)
    keys = {m: key_of(m, sources[m.file]) for m in chosen}
    todo = [m for m in chosen if keys[m] not in found]
    print(f"{len(every)} mutants, {len(chosen)} chosen, {len(todo)} to try", flush=True)
    if todo:
        with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
            trials = _Trials(Path(folder), root, files, sources)
            for number, mutant in enumerate(todo):
                if time.monotonic() - began > wanted.seconds:
                    break
                killer = trials.of(mutant)
                made = outcome(keys[mutant], mutant, killer, digests)
                keep(root / RECORD, made)
                found[made.key] = made
                if killer is None or number % 50 == 0:
                    said = "survived" if killer is None else killer
                    print(f"{number} {mutant.name}  [{said}]", flush=True)
            os.chdir(root)
    tried = [found[keys[m]] for m in chosen if keys[m] in found]
    return _report(tried, len(every), len(chosen), time.monotonic() - began)


class _Trials:
    """A copy of the repository, and what is known of its tests."""

    def __init__(self, copy: Path, root: Path, files: list[str], sources: dict[str, str]) -> None:
        for part in COPIED:
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(root / part, copy / part, ignore=ignore)
        for name in ("pyproject.toml", "Makefile", "README.md", "AGENTS.md", "prefect.yaml"):
            shutil.copy(root / name, copy / name)
        os.chdir(copy)
        # What a killed test leaves behind goes with the copy.
        (copy / "tmp").mkdir()
        tempfile.tempdir = str(copy / "tmp")
        os.environ |= {
            "PYTHONPATH": str(copy),
            "TRIBUTARY_HOME": str(copy / "home"),
            "TMPDIR": str(copy / "tmp"),
        }
        sys.path[:] = [str(copy), *(p for p in sys.path if p not in ("", str(root)))]
        self._copy, self._sources = copy.resolve(), sources
        load_libraries(files)
        use_few_examples()
        self._reach = self._reached(root / REACH, files)
        # From here on a mutant of the same size and second must not be taken for a compiled one.
        sys.dont_write_bytecode = True
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        for file in sources:
            for cached in (copy / file).parent.glob(f"__pycache__/{Path(file).stem}.*"):
                cached.unlink()
        self._check_control(sorted(sources)[-1])

    def _check_control(self, file: str) -> None:
        """A file that is written again unchanged must survive a test of each test file: what
        kills a mutant is the mutant."""
        first = {node.partition("::")[0]: node for node in sorted(self._reach.seconds)}
        stages = [[node] for node in first.values()]
        killer = try_mutant(self._copy / file, self._sources[file], stages, BOUND)
        if killer is not None:
            raise SystemExit(f"{killer} fails in a fork without any mutant")

    def _reached(self, kept: Path, files: list[str]) -> Reach:
        """By a run of all tests without a mutant, in a fork: this process stays without our
        modules. Kept in `build/` for the same sources and tests."""
        text = [*self._sources.values(), *(Path(file).read_text() for file in files)]
        digest = hashlib.sha256("".join(text).encode()).hexdigest()
        if kept.exists():
            of, lines, seconds = pickle.loads(kept.read_bytes())
            if of == digest:
                return Reach(self._copy, frozenset(self._sources), lines, seconds)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                reach = Reach(self._copy, frozenset(self._sources))
                plain = ["-q", "-p", "no:cacheprovider", "-W", "ignore", *files]
                code = int(pytest.main(plain, plugins=[reach]))
                kept.parent.mkdir(exist_ok=True)
                if not code:
                    kept.write_bytes(pickle.dumps((digest, reach.lines, dict(reach.seconds))))
            finally:
                sys.stdout.flush()
                os._exit(code)
        _, status = os.waitpid(child, 0)
        if os.waitstatus_to_exitcode(status):
            raise SystemExit("the tests fail without any mutant; nothing can be measured")
        return self._reached(kept, files)

    def of(self, mutant: Mutant) -> str | None:
        """What killed it."""
        original = self._sources[mutant.file]
        stages = self._reach.tests_of(mutant, original)
        if not stages:
            return None
        changed = changed_source(original, mutant.number)
        return try_mutant(self._copy / mutant.file, changed, stages, BOUND)


def _report(tried, num_every: int, num_chosen: int, seconds: float) -> int:
    survivors = [o for o in tried if o.killed_by is None]
    equivalent = sum(is_equivalent(o.name) for o in survivors)
    per_file = Counter(o.file for o in tried)
    left = Counter(o.file for o in survivors)
    for o in sorted(survivors, key=lambda o: o.name):
        print(f"survived  {o.name}\n          {said_of(o.name)}")
    killed, num = len(tried) - len(survivors), max(len(tried), 1)
    note = f"{killed} of {len(tried)} tried, {num_every} there are"
    rows = [Row(f"killed in {f}", (n - left[f]) / n, "share", note=f"{n - left[f]} of {n}")
            for f, n in sorted(per_file.items())]  # fmt: skip
    rows += [
        Row("killed", killed / num, "share", FLOOR, note=note),
        Row("killed of those not equivalent", killed / max(num - equivalent, 1), "share"),
        Row("survivors without a reason",
            sum(said_of(o.name) == "no reason given" for o in survivors), "mutants", 0, True),
        Row("not tried of those chosen", num_chosen - len(tried), "mutants", 0, True),
    ]  # fmt: skip
    show(rows, f"mutants, {seconds:.0f} s")
    write(rows, RESULT)
    return 0 if all(row.holds for row in rows) else 1


def _python(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(path.glob("*.py"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
