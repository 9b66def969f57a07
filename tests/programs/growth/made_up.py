"""Made-up data and small parts for the rows: samples, steps, and what a stage needs around them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from engines.rollout.consumer import StepResult
from engines.rollout.metrics import StopRule
from engines.rollout.producer import Sampled
from engines.rollout.records.gallery import Gallery
from engines.sglang.turn_queue import ServerUse
from engines.types import Group, Message, Problem, Sample, Status, TokenIds
from engines.weight_versions import WeightVersions
from infra.store.artifacts import StageCheckpoints
from infra.store.manifest import StageWarning
from infra.store.store import Store
from tasks.rl.stage_record import RlRecord
from tests.parts.rollout_parts import CharChat

PROMPT = 8
"""tokens of a sample that the policy did not write"""
TRAINED = {
    "entropy": 1.0, "mismatch_mean": 1e-6, "mismatch_max": 1e-5, "mfu": 0.4, "kl_k3": 0.1,
    "grad_norm": 1.0, "clip_fraction": 0.1, "tokens": 8.0,
} | {f"more_{n}": 0.5 for n in range(24)}  # fmt: skip
"""a step's metrics of the trainer, as many as a real one gives"""
NO_SERVERS = ServerUse()
_WORDS = [f"w{n}" for n in range(5000)]


class WordChat(CharChat):
    """Each token is a word."""

    def decode(self, token_ids: TokenIds) -> str:
        return " ".join(_WORDS[token % len(_WORDS)] for token in token_ids)


class NoReporter:
    """A `Reporter` whose words nobody hears."""

    def metrics(self, step: int, values: Mapping[str, float]) -> None: ...

    def progress(self, done: int, total: int, message: str = "") -> None: ...

    def warn(self, message: str) -> None: ...

    def keep_warning(self, warning: StageWarning) -> None: ...

    def dataset(self, name: str, rows: int, source: str) -> None: ...


def sample_of(ticket: int, index: int, version: int, tokens: int) -> Sample:
    """Half of the samples of a group are right. Its tokens are words as frequent as in a text."""
    made = np.random.default_rng((ticket, index))
    mask = np.arange(tokens) >= PROMPT
    reward = float(index % 2)
    return Sample(
        f"p{ticket}", "d", f"{ticket}/p", f"{ticket}/p#{index}", index,
        np.minimum(made.zipf(1.3, tokens), 150_000).astype(np.int32), mask,
        np.where(mask, -made.random(tokens), 0).astype(np.float32),
        WeightVersions.of_runs([(-1, PROMPT), (version, tokens - PROMPT)]),
        Status.COMPLETED, reward, {"outcome": reward},
    )  # fmt: skip


def group_of(ticket: int, version: int, tokens: int, size: int = 2) -> Group:
    problem = Problem(f"p{ticket}", "d", (Message("user", "ask"),))
    samples = [sample_of(ticket, index, version, tokens) for index in range(size)]
    return Group(problem, samples, ticket)


def step_result(step: int, tokens: int, groups: int = 3) -> StepResult:
    """One step of so many groups of two samples."""
    made = [group_of(step * groups + n, step - 1, tokens) for n in range(groups)]
    sampled = Sampled(made, made, waves=1, seconds=0.5)
    logprobs = {(s.rollout_id, s.branch): s.logprobs for g in made for s in g.samples}
    return StepResult(
        step, step, sampled, made, groups, dict(TRAINED), logprobs=logprobs, train_seconds=0.25
    )


def checkpoints_in(folder: Path) -> StageCheckpoints:
    store = Store(f"file://{folder}/store")
    return StageCheckpoints(store, "rl", "d" * 64, 1, folder / "scratch")


def record_of(checkpoints: StageCheckpoints, steps: int) -> RlRecord:
    """The record of an RL stage that never stops by itself."""
    watch = StopRule(solved_reward=2.0, min_outcome=0.0, max_entropy=None, max_failed_share=0.5)
    return RlRecord(
        watch=watch, gallery=Gallery(WordChat()), reporter=NoReporter(), steps=steps,
        notes=checkpoints,
    )  # fmt: skip


def new_folder(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def texts(count: int, words: int) -> Iterator[str]:
    """Different texts of so many words."""
    made = random.Random(0)
    for number in range(count):
        yield f"{number} " + " ".join(made.choices(_WORDS, k=words))
