"""Runs on record with small artifacts, for the pages that tell of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from engines.rollout.records.gallery import ROLLOUTS_FILE
from flows.load import load_recipe
from flows.reports.report import Report
from flows.running.new_run import new_run
from flows.running.records import RunRecord, RunState, StageRecord
from infra.store.artifacts import ArtifactStore
from infra.timeline import SERVERS, TRAINER, Timeline, write_trace
from tasks.evaluate.cells import CellResult
from tasks.evaluate.score_tables import scores_of
from tasks.rl.curve import Curve, ScorePoint

ATTACK = "</script><img src=x onerror=alert(1)>"
"""what a model may write"""
WORDS = ["ask", "answer", "two", "three", ATTACK]
"""the tokenizer's: token 5 is `ask`"""


def row(
    label: str,
    problem: str = "p",
    *,
    reward: float = 1.0,
    status: str = "completed",
    tokens: Sequence[int] = (5, 6, 7, 8),
    mask: Sequence[int] = (0, 0, 1, 1),
    trainer: Sequence[float] = (),
    reason: str = "",
    domain: str = "agent",
) -> dict[str, Any]:
    """A row of a gallery."""
    return {
        "label": label, "domain": domain, "problem_id": problem, "rollout_id": f"{label}/{problem}",
        "sample_index": 0, "status": status, "reason": reason, "reward": reward,
        "rewards": json.dumps({"outcome": reward}), "prompt": "ask", "response": "answer",
        "tokens": list(tokens), "loss_mask": list(mask),
        "logprobs": [-0.5 * m for m in mask], "weight_versions": [2 if m else -1 for m in mask],
        "trainer_logprobs": list(trainer),
    }  # fmt: skip


def finished_run(
    scratch: Path,
    *,
    name: str = "",
    changes: Sequence[str] = (),
    right: int = 5,
    seed: int = 0,
    more: int = 0,
    tokens: int = 0,
) -> RunRecord:
    """A run of `cpu-smoke` with a base that has a tokenizer, one RL stage, and an evaluation in
    which `agent` is right on `right` of 6 problems; the RL stage has `more` rollouts of so many
    tokens."""
    record = new_run(
        load_recipe("cpu-smoke", changes), "post-train", {}, name=name, in_process=True
    )
    scratch = scratch / record.run
    _put(record, scratch, "base", "base", {"tokenizer.json": _tokenizer()}, {}, 1.0)
    _put(record, scratch, "agent-rl", "rl", _trained(scratch, more, tokens), _RL_METRICS, 3.0)
    _put(record, scratch, "evaluate", "evaluate", _evaluated(scratch, right), {}, 6.0, seed=seed)
    record.put_state(RunState(state="completed", started=1.0, seconds=12.5))
    return record


def failed_run(home: Path, cause: str) -> RunRecord:
    """A run whose stage `agent-rl` failed and left a log."""
    record = new_run(load_recipe("cpu-smoke"), "post-train", {}, in_process=True)
    log = home / "logs" / "stages" / "job-1.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(f"step 1: loss=2.5\nTraceback\n{cause}\n")
    record.put_stage(
        StageRecord(
            name="agent-rl", kind="rl", state="failed", message=cause, job="job-1", started=1.0
        )
    )
    record.put_state(RunState(state="failed", started=1.0, seconds=4.0, message=cause))
    return record


_RL_METRICS = {
    "work_seconds": 8.0, "trainer_idle_seconds": 3.0, "train_seconds": 2.0, "publish_seconds": 1.0,
    "checkpoint_seconds": 0.5,
}  # fmt: skip


def _put(
    record: RunRecord,
    scratch: Path,
    name: str,
    kind: str,
    files: Mapping[str, str | bytes],
    metrics: Mapping[str, float],
    started: float,
    seed: int = 0,
) -> None:
    folder = scratch / f"made-{name}"
    for path, content in files.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content.encode() if isinstance(content, str) else content)
    digest = hashlib.sha256(f"{record.run} {name}".encode()).hexdigest()
    domain = {"name": "agent", "curriculum": {"name": "agent"}}
    identity = {"seed": seed, "settings": {"problems": 6}, "domains": [domain]}
    made = ArtifactStore(record.store, scratch / "cache").commit(
        kind, digest, 1, folder, identity=identity, inputs={}, code={"commit": "c" * 40},
        metrics=metrics, seeds={"seed": seed}, mlflow_run_id="", seconds=10.0,
    )  # fmt: skip
    record.put_stage(
        StageRecord(
            name=name, kind=kind, state="completed", digest=digest, artifact=made.url,
            seconds=2.0, started=started,
        )
    )  # fmt: skip


def _trained(scratch: Path, more: int, tokens: int) -> dict[str, str | bytes]:
    folder = scratch / "trained"
    folder.mkdir(parents=True)
    point = ScorePoint(step=2, version=2, outcome=0.5, stderr=0.1, problems=8, wanted=8)
    Curve(training={1: 0.25, 2: 0.5}, held_out={"agent": [point]}).write(folder)
    timeline = Timeline()
    timeline.add(TRAINER, "train", 100.0, 2.0, {"step": 1})
    timeline.add(SERVERS, "busy", 100.0, 1.0, {})
    write_trace(timeline, folder)
    counts = {"rollouts": {"completed": 7, "failed": 1}, "groups": {"sampled": 4, "trained on": 3}}
    rows = [
        row("step 1", "agent/a", trainer=[0, 0, -0.25, -0.5]),
        row("step 2", "agent/b", reward=0.0, status="failed", reason="no verdict",
            tokens=[5, 6, 7, 8, 9, 9], mask=[0, 0, 1, 1, 1, 1]),
    ]  # fmt: skip
    written = [5 + n % len(WORDS) for n in range(tokens)]
    mask = [int(n > 9) for n in range(tokens)]
    rows += [
        row(f"step {n}", f"agent/more/{n}", tokens=written, mask=mask, trainer=[-0.4999] * tokens)
        for n in range(more)
    ]
    return {
        "training/curve.json": (folder / "training/curve.json").read_bytes(),
        "training/trace.json": (folder / "training/trace.json").read_bytes(),
        "training/series.json": json.dumps({"entropy": [[1, 1.5], [2, 1.25]]}),
        "training/counts.json": json.dumps(counts),
        ROLLOUTS_FILE: _parquet(folder / "rows.parquet", rows),
    }


def _evaluated(scratch: Path, right: int) -> dict[str, str | bytes]:
    outcomes = {"agent-sft": [1.0] + [0.0] * 5, "agent": [1.0] * right + [0.0] * (6 - right)}
    results = [
        CellResult(model, "agent", kind, sum(values) / 6, 0.1, 6, 24, 0.0, 0.0, 0.0, "",
                   [[v] for v in values], [[1 + n % 4] for n in range(6)], 4)
        for model, values in outcomes.items() for kind in ("score", "greedy")
    ]  # fmt: skip
    rows = [
        row(f"{model} {kind}", f"agent/heldout/{n}", reward=value, reason="" if value else ATTACK,
            tokens=[5, 6, 9, 7] if value else [5, 6, 9, 8])
        for model, values in outcomes.items() for kind in ("score", "greedy")
        for n, value in enumerate(values)
    ]  # fmt: skip
    place = scratch / "evaluated.parquet"
    return {"scores.json": json.dumps(scores_of(results)), ROLLOUTS_FILE: _parquet(place, rows)}


def _parquet(path: Path, rows: Sequence[Mapping[str, Any]]) -> bytes:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist([dict(r) for r in rows]), path)
    return path.read_bytes()


def _tokenizer() -> str:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    known = {f"<{n}>": n for n in range(5)} | {word: 5 + n for n, word in enumerate(WORDS)}
    return Tokenizer(WordLevel(known, unk_token="<0>")).to_str()


def report(scores, **fields) -> Report:
    return Report(
        run="r", state="completed", seconds=1.0, stages=[], scores=scores, greedy={}, **fields
    )


def cell(model, domain, outcomes, kind="score"):
    return {"model": model, "domain": domain, "kind": kind, "outcomes": outcomes}
