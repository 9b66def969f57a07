"""Samples of an artifact, read for a person: of any kind of stage that keeps some."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from engines.rollout.records.dataset import DATA_FILE, DistilledRow, row_of
from engines.rollout.records.gallery import (
    ROLLOUTS_FILE,
    RolloutRow,
    statement_of,
)
from engines.rollout.records.parquet_rows import ParquetRows
from engines.types import Message

FILES = (ROLLOUTS_FILE, DATA_FILE)
"""kept rollouts of `rl`, `opd`, `rollout` and `evaluate`, and the dataset of `distill`"""
_STEP = re.compile(r"step (\d+)$")


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a response."""

    by: Literal["model", "environment"]
    text: str


@dataclass(frozen=True, slots=True)
class SampleHead:
    """By which a sample is chosen. `reward` is None where only verified answers were kept."""

    number: int
    """its row in the file"""
    step: int | None
    domain: str
    status: str
    reward: float | None
    trained: int
    of: str
    """the model that wrote it, or its expert, where a stage has samples of several"""


@dataclass(frozen=True, slots=True)
class ShownSample:
    """`reward` is None where only verified answers were kept."""

    label: str
    """a step, a model, or an expert"""
    step: int | None
    domain: str
    problem: str
    sample: int
    """position of its rollout in the group"""
    status: str
    reason: str
    reward: float | None
    rewards: Mapping[str, float]
    prompt: str
    response: tuple[Part, ...]
    tokens: tuple[int, ...]
    loss_mask: tuple[int, ...]
    of: str = ""
    """the model that wrote it, or its expert, where a stage has samples of several"""

    @property
    def trained(self) -> int:
        return sum(self.loss_mask)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class Samples:
    """Of a file of samples all heads, and each sample when it is asked for."""

    def __init__(self, file: Path) -> None:
        self._rows = ParquetRows(file)
        self._is_dataset = file.name == DATA_FILE
        self.kept = "every row of the dataset" if self._is_dataset else statement_of(file)
        """which of the stage's samples they are"""

    def heads(self) -> Sequence[SampleHead]:
        """All of them, in the file's order."""
        trained = self._rows.sums("loss_mask")
        head = _distilled_head if self._is_dataset else _rollout_head
        known = self._rows.columns(("label", "domain", "status", "reward", "expert"))
        return [head(n, row, trained[n]) for n, row in enumerate(known)]

    def sample(self, head: SampleHead) -> ShownSample:
        row = self._rows.row(head.number)
        return _distilled(row_of(row)) if self._is_dataset else _rollout(RolloutRow(**row))


def _rollout_head(number: int, row: Mapping[str, Any], trained: int) -> SampleHead:
    step, of = _step_and_model(row["label"])
    return SampleHead(number, step, row["domain"], row["status"], row["reward"], trained, of)


def _distilled_head(number: int, row: Mapping[str, Any], trained: int) -> SampleHead:
    return SampleHead(number, None, row["domain"], "completed", None, trained, row["expert"])


def _step_and_model(label: str) -> tuple[int | None, str]:
    step = _STEP.search(label)
    return (int(step[1]), "") if step else (None, label.partition(" ")[0])


def _rollout(row: RolloutRow) -> ShownSample:
    step, of = _step_and_model(row.label)
    return ShownSample(
        label=row.label,
        step=step,
        domain=row.domain,
        problem=row.problem_id,
        sample=row.sample_index,
        status=row.status,
        reason=row.reason,
        reward=row.reward,
        rewards=json.loads(row.rewards),
        prompt=row.prompt,
        response=tuple(_parts(row)),
        tokens=tuple(row.tokens),
        loss_mask=tuple(row.loss_mask),
        of=of,
    )


def _parts(row: RolloutRow) -> Iterator[Part]:
    """The response cut where the model and the environment take turns; the model begins."""
    edges = [0, *row.cuts, len(row.response)]
    for turn, (begin, end) in enumerate(pairwise(edges)):
        yield Part("environment" if turn % 2 else "model", row.response[begin:end])


def _distilled(row: DistilledRow) -> ShownSample:
    return ShownSample(
        label=f"from {row.expert}",
        step=None,
        domain=row.problem.domain,
        problem=row.problem.id,
        sample=row.sample_index,
        status="completed",
        reason="",
        reward=None,
        rewards=row.rewards,
        prompt="".join(f"{m.role}: {m.content}\n" for m in row.problem.messages),
        response=tuple(
            Part("environment" if m.role == "tool" else "model", _text(m)) for m in row.turns
        ),
        tokens=tuple(row.tokens),
        loss_mask=tuple(row.loss_mask),
        of=row.expert,
    )


def _text(message: Message) -> str:
    """A turn as it was parsed: its tokens are in another model's format."""
    thought = f"<think>{message.reasoning}</think>" if message.reasoning else ""
    calls = "".join(f"{call.name}({json.dumps(call.arguments)})" for call in message.tool_calls)
    return f"{thought}{message.content}{calls}\n"
