"""What is mutated, and the tests that are asked."""

from __future__ import annotations

from pathlib import Path

from tests.programs.mutants.mutations import Mutant, mutants

MUTATED = ("engines/algorithms", "engines/batching.py")
TESTS = [
    "advantages",
    "aggregation",
    "corrections",
    "policy_losses",
    "linear_logprobs",
    "linear_logprobs_memory",
    "linear_logprobs_ranks",
    "rl_batch",
    "algorithm_defaults",
    "algorithm_spec",
    "batching",
    "hook_contract",
    "hook_paths",
]
LEFT_OUT = ("test_trl.py", "test_table.py")
"""loads TRL anew for each mutant; looks at pages"""
_UNIT = "tests/unit/engines/algorithms"
IN_RANKS = {
    "engines/algorithms/linear_logprobs.py": f"{_UNIT}/test_linear_logprobs_ranks.py",
    "engines/algorithms/inputs.py": "tests/programs/proof/test_ranks.py",
}
"""source file -> tests that run it in other processes, where no line is watched"""


def read_sources() -> dict[str, str]:
    """Path -> text of each mutated file, paths relative to the repository."""
    paths = [file for part in map(Path, MUTATED) for file in _python(part)]
    return {str(path): path.read_text() for path in paths}


def every_mutant(sources: dict[str, str]) -> list[Mutant]:
    return [mutant for file, text in sources.items() for mutant in mutants(file, text)]


def test_files() -> list[str]:
    units = [_only(Path("tests/unit"), f"test_{name}.py") for name in TESTS]
    proofs = sorted(map(str, Path("tests/programs/proof").glob("test_*.py")))
    return units + [file for file in proofs if not file.endswith(LEFT_OUT)]


def _only(folder: Path, name: str) -> str:
    found = sorted(map(str, folder.rglob(name)))
    assert len(found) == 1, f"{name} in {folder}: {found or 'missing'}"
    return found[0]


def _python(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(path.rglob("*.py"))
