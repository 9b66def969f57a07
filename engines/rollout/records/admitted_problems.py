"""The problems that an `admit` stage let through: one Parquet row each, to be drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engines.rollout.records.json_text import dump_problem, load_problem
from engines.types import Problem, Split
from infra.errors import InputError

ADMITTED_FILE = "admitted.parquet"


@dataclass(frozen=True, slots=True)
class AdmittedProblem:
    """Example: AdmittedProblem("coding", "rl", problem)"""

    domain: str
    """its name in the recipe"""
    split: Split
    problem: Problem


def write_admitted(folder: Path, rows: Sequence[AdmittedProblem]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {
        "domain": pa.array([row.domain for row in rows], pa.string()),
        "split": pa.array([row.split for row in rows], pa.string()),
        "problem_id": pa.array([row.problem.id for row in rows], pa.string()),
        "problem": pa.array([dump_problem(row.problem) for row in rows], pa.string()),
    }
    pq.write_table(pa.table(columns), folder / ADMITTED_FILE)


def read_admitted(folder: Path) -> list[AdmittedProblem]:
    """In the order in which they were written. Raises InputError for a folder without them."""
    import pyarrow.parquet as pq

    file = folder / ADMITTED_FILE
    if not file.is_file():
        raise InputError(f"no admitted problems in {folder}: expected {ADMITTED_FILE}")
    return [
        AdmittedProblem(raw["domain"], raw["split"], load_problem(raw["problem"]))
        for raw in pq.read_table(file).to_pylist()
    ]
