"""Reads samples of an artifact that a person names, of any kind of stage that keeps some."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from engines.rollout.records.dataset import DATA_FILE, DistilledRow, ParquetRows, row_of
from engines.rollout.records.gallery import ROLLOUTS_FILE, RolloutRow, statement_of
from engines.types import Message
from flows.command.models.model_names import stages_of_run
from flows.command.models.named_artifacts import find_artifact, made_by
from flows.explain import nearest
from flows.running.records import (
    DONE,
    RunRecord,
    find_run,
    find_run_with,
    run_entries,
    store_to_show,
)
from infra.errors import InputError
from infra.store.artifacts import ArtifactRecord, ArtifactStore

FILES = (ROLLOUTS_FILE, DATA_FILE)
"""kept rollouts of `rl`, `opd`, `rollout` and `evaluate`, and the dataset of `distill`"""
_STEP = re.compile(r"step (\d+)$")
_DIGEST = re.compile(r"([\w-]+/)?[0-9a-f]+")


@dataclass(frozen=True, slots=True)
class Range:
    low: float = -math.inf
    high: float = math.inf

    @classmethod
    def of(cls, option: str, text: str) -> Range | None:
        """Read a range; None for an empty text. Raises InputError, naming the option."""
        if not text:
            return None
        first, colon, last = text.partition(":")
        try:
            low = float(first) if first else -math.inf
            high = (float(last) if last else math.inf) if colon else low
        except ValueError:
            low, high = math.nan, math.nan
        if not low <= high or text == ":":
            raise InputError(f"{option} {text}: give a number or a range: 7, 5:9, 5: or :9")
        return cls(low, high)

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a response."""

    by: Literal["model", "environment"]
    text: str


@dataclass(frozen=True, slots=True)
class SampleHead:
    """Holds what a sample is chosen by. `reward` is None where only verified answers were kept."""

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
    """A file of samples: all heads, and each sample when it is asked for."""

    def __init__(self, file: Path) -> None:
        self._rows = ParquetRows(file)
        self._is_dataset = file.name == DATA_FILE
        self.kept = "every row of the dataset" if self._is_dataset else statement_of(file)
        """which of the stage's samples they are"""

    def heads(self) -> Sequence[SampleHead]:
        """Return all of them, in the file's order."""
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
    """Return a turn as it was parsed: its tokens are in another model's format."""
    thought = f"<think>{message.reasoning}</think>" if message.reasoning else ""
    calls = "".join(f"{call.name}({json.dumps(call.arguments)})" for call in message.tool_calls)
    return f"{thought}{message.content}{calls}\n"


@dataclass(frozen=True, slots=True)
class Found:
    """`run` and `stage` are empty for an artifact whose maker is not on record."""

    run: str
    stage: str
    record: ArtifactRecord
    file: Path
    """its samples, on this machine"""


def find_samples(artifact: str, run: str, root: str, is_meant: Callable[[str], bool]) -> Found:
    """The samples of a stage of `run`, or of RUN/STAGE, or of an artifact by the beginning of its
    digest; without either those of the last stage of the run whose name `is_meant`. Raises
    InputError."""
    if root or (artifact and not run_entries()):
        artifacts = ArtifactStore(store_to_show(root))
        if not artifact:
            raise InputError("name an artifact of this store; see `tributary artifacts`")
        return _by_digest(artifacts, artifact)
    if not run and "/" in artifact and not _DIGEST.fullmatch(artifact):
        run, _, artifact = artifact.rpartition("/")
        record = find_run_with(run, artifact)
    else:
        record = find_run(run)
    artifacts = ArtifactStore(record.store)
    if not artifact:
        return _last(artifacts, record, is_meant)
    stages = record.stages()
    if (stage := stages.get(artifact)) is not None and stage.state in DONE:
        made = artifacts.find(stage.kind, stage.digest)
        if made is not None:
            return Found(record.run, stage.name, made, _file(artifacts, made))
    if stage is not None:
        raise InputError(
            f"stage {artifact} of run {record.run} is {stage.state}: its samples are kept when it"
            f" is done; `tributary logs {record.run} {artifact}` shows what it did"
        )
    if not _DIGEST.fullmatch(artifact):
        if not run and (said := stages_of_run(artifact)):
            raise InputError(said)
        raise InputError(
            f"run {record.run} has reached no stage `{artifact}`{nearest(artifact, list(stages))};"
            f" it has {', '.join(stages) or 'none'}. Name another run with --run"
        )
    return _by_digest(artifacts, artifact)


def _by_digest(artifacts: ArtifactStore, wanted: str) -> Found:
    made = find_artifact(artifacts, wanted)
    maker = made_by(artifacts, made)
    return Found(maker.run, maker.stage, made, _file(artifacts, made))


def _last(artifacts: ArtifactStore, record: RunRecord, is_meant: Callable[[str], bool]) -> Found:
    """Models of several experts are in the evaluation, which comes after the stages by name."""
    done = [stage for stage in record.stages().values() if stage.state in DONE]
    named = [stage for stage in done if is_meant(stage.name)]
    for stage in sorted(named or done, key=lambda stage: stage.started, reverse=True):
        made = artifacts.find(stage.kind, stage.digest)
        if made is not None and _name(artifacts, made):
            return Found(record.run, stage.name, made, _file(artifacts, made))
    raise InputError(
        f"no finished stage of run {record.run} has kept samples yet; see `tributary report"
        f" {record.run}`"
    )


def _file(artifacts: ArtifactStore, record: ArtifactRecord) -> Path:
    name = _name(artifacts, record)
    if not name:
        raise InputError(
            f"artifact {record.name} holds no samples: a stage of kind {record.kind} samples none."
            " rl, opd, rollout, distill and evaluate do"
        )
    return artifacts.local(record) / name


def _name(artifacts: ArtifactStore, record: ArtifactRecord) -> str:
    manifest = artifacts.manifest(record.kind, record.digest)
    there = {file.path for file in manifest.files} if manifest else set[str]()
    return next((name for name in FILES if name in there), "")
