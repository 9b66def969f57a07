"""Gallery: a few rollouts of every step, kept for a person to browse."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from engines.rollout.protocols import ChatFormat
from engines.types import Group, Sample

ROLLOUTS_FILE = "rollouts.parquet"


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


class Gallery:
    """Collects rows and writes them as Parquet."""

    def __init__(self, chat: ChatFormat) -> None:
        self._chat = chat
        self._rows: list[RolloutRow] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, label: str, sample: Sample) -> None:
        start = sample.loss_mask.index(1) if 1 in sample.loss_mask else len(sample.tokens)
        self._rows.append(
            RolloutRow(
                label=label,
                domain=sample.domain,
                problem_id=sample.problem_id,
                rollout_id=sample.rollout_id,
                sample_index=sample.sample_index,
                status=str(sample.status),
                reason=sample.reason,
                reward=sample.reward,
                rewards=json.dumps(sample.rewards, sort_keys=True),
                prompt=self._chat.decode(sample.tokens[:start]),
                response=self._chat.decode(sample.tokens[start:]),
                tokens=sample.tokens,
                loss_mask=sample.loss_mask,
                logprobs=sample.logprobs,
                weight_versions=sample.weight_versions,
            )
        )

    def add_step(self, label: str, groups: Sequence[Group], count: int = 3) -> None:
        """Best and worst of `count` groups, spread over the step; groups with signal first."""
        chosen = [g for g in groups if g.has_signal] or list(groups)
        for group in chosen[:: max(1, len(chosen) // count)][:count]:
            ranked = sorted(group.samples, key=lambda s: s.reward)
            for sample in ranked[-1:] + ranked[:-1][:1]:
                self.add(label, sample)

    def copy(self) -> Gallery:
        """The rows so far, to be written while more are added to these."""
        made = Gallery(self._chat)
        made._rows = list(self._rows)
        return made

    def write(self, folder: Path) -> None:
        """Write `rollouts.parquet` into a folder."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns = {f.name: [getattr(r, f.name) for r in self._rows] for f in fields(RolloutRow)}
        pq.write_table(pa.table(columns), folder / ROLLOUTS_FILE)

    def restore(self, folder: Path) -> None:
        """Take up the rows of an earlier attempt."""
        self._rows = list(read_rollouts(folder / ROLLOUTS_FILE))


def read_rollouts(file: Path) -> Iterable[RolloutRow]:
    """The rows of a `rollouts.parquet`."""
    import pyarrow.parquet as pq

    return [RolloutRow(**raw) for raw in pq.read_table(file).to_pylist()]
