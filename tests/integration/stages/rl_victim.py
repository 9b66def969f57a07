"""An RL stage that kills its own process at a moment: `rl_victim ROOT MODEL MOMENT VARIANT`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infra.artifacts import StageCheckpoints
from infra.storage import Store
from tasks import rl
from tasks.stage import Resources, StageContext
from tests.stage_parts import ListReporter, stage_context

MOMENTS = ("mid-generation", "mid-checkpoint", "after-training")
"""of step 3; of step 4, whose checkpoint is torn; of step 5"""


# A critic that is alone in the first step; data of older weights; and of a coarser engine.
VARIANTS: dict[str, dict[str, Any]] = {
    "grpo": {},
    "ppo": {"algorithm": {"preset": "ppo"}, "critic": {"warmup_steps": 1}},
    "stale": {"max_staleness": 2, "algorithm": {"preset": "icepop"}},
    "bf16": {
        "max_staleness": 2,
        "algorithm": {"preset": "icepop", "agreement_gate": 0.05},
        "fleet": {"sglang": {"dtype": "bfloat16"}},
    },
}


def rl_spec(variant: str = "grpo") -> rl.RlSpec:
    """Five steps, a checkpoint after every second."""
    domain = {
        "name": "general",
        "curriculum": {"name": "general"},
        "rewards": [
            {"name": "constraints", "outcome": True},
            # A random model solves nothing: this gives groups a spread that follows the text.
            {"name": "tests.stage_parts:by_content"},
        ],
        "max_new_tokens": 24,
    }
    settings: dict[str, Any] = {
        "steps": 5,
        "problems_per_step": 4,
        "group_size": 4,
        "oversample": 2.0,
        "optimizer": {"lr": 3e-3},
        "checkpoint_every": 2,
        **VARIANTS[variant],
    }
    return rl.RlSpec.model_validate({"settings": settings, "domains": [domain]})


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Reporter(ListReporter):
    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        if step == 5:
            _die()


class DyingStore(Store):
    """Dies before a checkpoint's manifest is written, or after the first note of step 3."""

    moment = ""

    def write(self, path: str, data: bytes) -> None:
        if self.moment == "mid-checkpoint" and path.endswith("step-00000004-a2/manifest.json"):
            _die()
        super().write(path, data)
        if self.moment == "mid-generation" and "notes/step-00000003" in path:
            _die()


def context_of(root: Path, name: str, model: Path) -> StageContext:
    """Room for a policy and a critic."""
    return stage_context(root, name, {"model": model}, pool=Resources(trainer_ranks=2, servers=1))


def main(root: Path, model: Path, moment: str, variant: str) -> None:
    name = f"cut-{variant}"
    context = context_of(root, name, model)
    attempt = int((root / name / "attempts").read_text())
    store = DyingStore(f"file://{root / name / 'store'}")
    store.moment = moment
    context.checkpoints = StageCheckpoints(store, "test", "0" * 64, attempt, context.scratch)
    if moment == "after-training":
        context.reporter = Reporter()
    asyncio.run(rl.run(rl_spec(variant), context))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
