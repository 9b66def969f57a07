"""A stage's surroundings for tests that run a body by itself: local folders, no store, no flow."""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engines.types import Transcript, Verdict
from infra.store.artifacts import StageCheckpoints
from infra.store.manifest import StageWarning
from infra.store.store import Store
from tasks.stage import Resources, StageContext, StageResources

STEADY: dict[str, Any] = {
    "name": "general",
    "curriculum": {"name": "general"},
    "rewards": [
        {"name": "constraints", "outcome": True},
        # A random model solves nothing: this gives groups a spread that follows the text.
        {"name": "tests.parts.stage_parts:by_content"},
    ],
    "max_new_tokens": 24,
}
"""a domain whose rollouts, repeated, get the same rewards"""


def scored(domain: Mapping[str, Any]) -> dict[str, Any]:
    """What `distill` and `evaluate` read of such a domain."""
    outcomes = [{"name": term["name"]} for term in domain["rewards"] if term.get("outcome")]
    kept = {name: domain[name] for name in ("name", "curriculum", "max_new_tokens")}
    return {**kept, "max_turns": 1, "timeout_s": 60.0, "outcomes": outcomes}


@dataclass
class ListReporter:
    """Keeps what a body reports."""

    steps: dict[int, dict[str, float]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    kept: list[StageWarning] = field(default_factory=list)
    verbose: bool = False

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self.steps.setdefault(step, {}).update(values)

    def progress(self, done: int, total: int, message: str = "") -> None:
        if self.verbose:
            print(f"  {done}/{total} {message}", flush=True)

    def warn(self, message: str) -> None:
        self.warnings.append(message)
        if self.verbose:
            print(f"  warning: {message}", flush=True)

    def keep_warning(self, warning: StageWarning) -> None:
        self.kept.append(warning)
        self.warn(str(warning))

    def dataset(self, name: str, rows: int, source: str) -> None:
        pass


def stage_context(
    root: Path,
    name: str,
    inputs: Mapping[str, Path],
    *,
    records: Mapping[str, Mapping[str, Any]] | None = None,
    resources: StageResources | None = None,
    pool: Resources | None = None,
    verbose: bool = False,
) -> StageContext:
    """Folders under `root/name`; what an earlier context of that name checkpointed is kept."""
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    attempt = _next_attempt(folder)
    for part in ("out", "scratch"):
        shutil.rmtree(folder / part, ignore_errors=True)
        (folder / part).mkdir(parents=True)
    return StageContext(
        name=name,
        holder=f"test-{name}",
        inputs=dict(inputs),
        input_records=records or {},
        out=folder / "out",
        scratch=folder / "scratch",
        checkpoints=StageCheckpoints(
            Store(f"file://{folder / 'store'}"), "test", "0" * 64, attempt, folder / "scratch"
        ),
        resources=resources or StageResources(),
        pool=pool or Resources(trainer_ranks=1, servers=1),
        reporter=ListReporter(verbose=verbose),
    )


def _next_attempt(folder: Path) -> int:
    counter = folder / "attempts"
    attempt = 1 + (int(counter.read_text()) if counter.exists() else 0)
    counter.write_text(str(attempt))
    return attempt


async def grade_of_content(transcript: Transcript) -> Verdict:
    """A reward between 0 and 1 that any model gets: the same for the same text, else another."""
    return Verdict(zlib.crc32(transcript.raw.encode()) / 2**32)


async def by_content(transcript: Transcript) -> Verdict:
    """A reward that any model gets about every other time, and the same text always or never."""
    return Verdict(float(zlib.crc32(transcript.raw.encode()) % 2))
