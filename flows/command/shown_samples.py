"""Samples of an artifact, read for a person: of any kind of stage that keeps some."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from engines.rollout.records.dataset import DATA_FILE, DistilledRow, read_dataset
from engines.rollout.records.gallery import (
    ROLLOUTS_FILE,
    RolloutRow,
    read_rollouts,
    statement_of,
)
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


def read_samples(file: Path) -> tuple[list[ShownSample], str]:
    """All of a file, in its order, and which of the stage's samples they are."""
    if file.name == DATA_FILE:
        return [_distilled(row) for row in read_dataset(file)], "every row of the dataset"
    return [_rollout(row) for row in read_rollouts(file)], statement_of(file)


def _rollout(row: RolloutRow) -> ShownSample:
    step = _STEP.search(row.label)
    return ShownSample(
        label=row.label,
        step=int(step[1]) if step else None,
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
        of="" if step else row.label.partition(" ")[0],
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
