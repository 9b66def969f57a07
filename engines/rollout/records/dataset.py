"""The distilled dataset: verified rollouts of experts, one Parquet row each, with provenance."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines.rollout.records.json_text import dump_problem, dump_turns, load_problem, load_turns
from engines.types import Message, Problem
from infra.errors import InputError

DATA_FILE = "data.parquet"
_FORMATS = "chat_formats"
"""key of the file's metadata"""


@dataclass(frozen=True, slots=True)
class DistilledRow:
    """One verified rollout: its tokens as sampled, and the conversation to render it anew.

    Example: DistilledRow([5, 9, 7, 2], [0, 0, 1, 1], problem, turns, expert="agent-rl",
    artifact_digest="9f...", sample_index=0, weight_version=3, rewards={"outcome": 1.0})
    """

    tokens: list[int]
    loss_mask: list[int]
    problem: Problem
    turns: tuple[Message, ...]
    """assistant and tool turns after the problem's messages"""
    expert: str
    artifact_digest: str
    """digest of the expert's artifact"""
    sample_index: int
    weight_version: int
    rewards: dict[str, float]


def write_dataset(
    path: Path, rows: Sequence[DistilledRow], formats: Mapping[str, str] | None = None
) -> None:
    """Write rows as Parquet; ids are int32, masks int8, structures JSON text.

    `formats` says what each expert's tokens mean: its chat's `format_checksum`.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {
        "tokens": pa.array([r.tokens for r in rows], pa.list_(pa.int32())),
        "loss_mask": pa.array([r.loss_mask for r in rows], pa.list_(pa.int8())),
        "domain": pa.array([r.problem.domain for r in rows], pa.string()),
        "expert": pa.array([r.expert for r in rows], pa.string()),
        "artifact_digest": pa.array([r.artifact_digest for r in rows], pa.string()),
        "problem_id": pa.array([r.problem.id for r in rows], pa.string()),
        "sample_index": pa.array([r.sample_index for r in rows], pa.int32()),
        "weight_version": pa.array([r.weight_version for r in rows], pa.int32()),
        "rewards": pa.array([json.dumps(r.rewards, sort_keys=True) for r in rows], pa.string()),
        "thinking": pa.array([r.problem.thinking for r in rows], pa.bool_()),
        "problem": pa.array([dump_problem(r.problem) for r in rows], pa.string()),
        "turns": pa.array([dump_turns(r.turns) for r in rows], pa.string()),
    }
    known = {_FORMATS: json.dumps(dict(formats or {}), sort_keys=True)}
    pq.write_table(pa.table(columns, metadata=known), path)


def read_dataset(path: Path) -> list[DistilledRow]:
    """Rows of a file, or of the `data.parquet` in a folder. Raises InputError if it has none."""
    import pyarrow.parquet as pq

    return [row_of(raw) for raw in pq.read_table(_file_of(path)).to_pylist()]


def read_formats(path: Path) -> dict[str, str]:
    """The `format_checksum` of each expert that the dataset knows one of; raises as above."""
    import pyarrow.parquet as pq

    metadata: Mapping[bytes, bytes] = pq.read_schema(_file_of(path)).metadata or {}
    return json.loads(metadata.get(_FORMATS.encode(), b"{}"))


def _file_of(path: Path) -> Path:
    file = path / DATA_FILE if path.is_dir() else path
    if not file.is_file():
        raise InputError(f"no distilled dataset at {file}: expected {DATA_FILE}")
    return file


def row_of(raw: Mapping[str, Any]) -> DistilledRow:
    """From a row of the file."""
    return DistilledRow(
        tokens=raw["tokens"],
        loss_mask=raw["loss_mask"],
        problem=load_problem(raw["problem"]),
        turns=load_turns(raw["turns"]),
        expert=raw["expert"],
        artifact_digest=raw["artifact_digest"],
        sample_index=raw["sample_index"],
        weight_version=raw["weight_version"],
        rewards=json.loads(raw["rewards"]),
    )
