"""Gallery: a few rollouts of every step, kept for a person to browse."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from engines.rollout.protocols import ChatFormat
from engines.rollout.records.shown import best_and_worst
from engines.step_inputs import Values
from engines.types import Group, Sample

if TYPE_CHECKING:
    import pyarrow as pa

ROLLOUTS_FILE = "rollouts.parquet"
TrainerLogprobs: TypeAlias = "Mapping[tuple[str, int], Values]"
"""by rollout and branch"""
_NONE: TrainerLogprobs = {}


@dataclass(frozen=True, slots=True)
class RolloutRow:
    """One shown rollout. `label` is a step's number or a model's name."""

    label: str
    domain: str
    problem_id: str
    rollout_id: str
    sample_index: int
    status: str
    reason: str
    reward: float
    rewards: str
    """JSON object"""
    prompt: str
    response: str
    """decoded with special tokens"""
    tokens: list[int]
    loss_mask: list[int]
    logprobs: list[float]
    weight_versions: list[int]
    trainer_logprobs: list[float]
    """before the update, 0 where nothing is trained; empty where the trainer did not score it"""


class Gallery:
    """Collects rows and writes them as Parquet. A row is encoded once, when it is added."""

    def __init__(self, chat: ChatFormat) -> None:
        self._chat = chat
        self._tables: list[pa.Table] = []

    def __len__(self) -> int:
        return sum(table.num_rows for table in self._tables)

    def add(self, label: str, samples: Sequence[Sample], logprobs: TrainerLogprobs = _NONE) -> None:
        """`logprobs` are the trainer's, of those samples that it scored."""
        self._tables.append(self._table(label, samples, logprobs))

    def _table(self, label: str, samples: Sequence[Sample], logprobs: TrainerLogprobs) -> pa.Table:
        import pyarrow as pa

        starts = [sample.num_prompt_tokens for sample in samples]
        shown = list(zip(samples, starts, strict=True))
        columns: dict[str, Any] = {
            "label": [label] * len(samples),
            "domain": [s.domain for s in samples],
            "problem_id": [s.problem_id for s in samples],
            "rollout_id": [s.rollout_id for s in samples],
            "sample_index": [s.sample_index for s in samples],
            "status": [str(s.status) for s in samples],
            "reason": [s.reason for s in samples],
            "reward": [s.reward for s in samples],
            "rewards": [json.dumps(s.rewards, sort_keys=True) for s in samples],
            "prompt": [self._chat.decode(s.tokens[:start]) for s, start in shown],
            "response": [self._chat.decode(s.tokens[start:]) for s, start in shown],
            "tokens": [s.tokens for s in samples],
            "loss_mask": [s.loss_mask.view("int8") for s in samples],
            "logprobs": [s.logprobs for s in samples],
            "weight_versions": [s.weight_versions.of_each() for s in samples],
            "trainer_logprobs": [logprobs.get((s.rollout_id, s.branch), ()) for s in samples],
        }
        return pa.table(columns, schema=_schema())

    def add_step(
        self,
        label: str,
        groups: Sequence[Group],
        count: int = 3,
        logprobs: TrainerLogprobs = _NONE,
    ) -> None:
        """Best and worst of `count` groups, spread over the step; groups with signal first."""
        self.add(label, best_and_worst(groups, count), logprobs)

    def take(self) -> Gallery:
        """The rows so far, to be written down; this gallery begins anew."""
        made = Gallery(self._chat)
        made._tables, self._tables = self._tables, []
        return made

    def encoded(self) -> bytes:
        """The rows as a Parquet file."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        sink = pa.BufferOutputStream()
        pq.write_table(self._rows(), sink)
        return sink.getvalue().to_pybytes()

    def write(self, folder: Path, earlier: Iterable[bytes] = ()) -> None:
        """Write `rollouts.parquet` into a folder: rows that were `encoded` earlier, then these."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        with pq.ParquetWriter(folder / ROLLOUTS_FILE, _schema()) as file:
            for piece in earlier:
                file.write_table(pq.read_table(pa.BufferReader(piece)))
            file.write_table(self._rows())

    def _rows(self) -> pa.Table:
        import pyarrow as pa

        return pa.concat_tables([_schema().empty_table(), *self._tables])


def _schema() -> pa.Schema:
    import pyarrow as pa

    kinds = {"sample_index": pa.int32(), "reward": pa.float64()} | {
        "tokens": pa.list_(pa.int32()),
        "loss_mask": pa.list_(pa.int8()),
        "logprobs": pa.list_(pa.float32()),
        "trainer_logprobs": pa.list_(pa.float32()),
        "weight_versions": pa.list_(pa.int32()),
    }
    return pa.schema([(f.name, kinds.get(f.name, pa.string())) for f in fields(RolloutRow)])


def read_rollouts(file: Path) -> Iterable[RolloutRow]:
    """The rows of a `rollouts.parquet`."""
    import pyarrow.parquet as pq

    return [RolloutRow(**raw) for raw in pq.read_table(file).to_pylist()]
