"""An RL stage that kills its own process at a moment: `rl_victim ROOT MODEL MOMENT VARIANT`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infra.store.artifacts import StageCheckpoints
from infra.store.store import Store
from tasks.rl.body import run as run_rl
from tasks.rl.spec import RlSpec
from tasks.stage import Resources, StageContext
from tests.parts.stage_parts import STEADY, ListReporter, stage_context

MOMENTS = ("mid-generation", "beside-checkpoint", "after-training")
"""of step 3; of step 5, while the store still takes in the checkpoint of step 4, which is torn; of
the last step"""
LIMIT_S = 120.0

# Scores on held-out problems; a critic that is alone in the first step; pairs of rollouts; sampling
# beside training; rollouts that go on in the next step; a coarser engine.
VARIANTS: dict[str, dict[str, Any]] = {
    "grpo": {"evaluate": {"every": 2, "problems": 8}},
    "ppo": {"steps": 3, "algorithm": {"preset": "ppo"}, "critic": {"warmup_steps": 1}},
    "online-dpo": {"steps": 3, "algorithm": {"preset": "online-dpo"}},
    "partial": {"max_staleness": 2, "partial_rollout_tokens": 5},
    "stale": {"max_staleness": 2, "algorithm": {"preset": "icepop"}},
    "bf16": {
        "algorithm": {"preset": "icepop", "agreement_gate": 0.05},
        "fleet": {"sglang": {"dtype": "bfloat16"}},
    },
}


def rl_spec(variant: str = "grpo") -> RlSpec:
    """Five steps, of some variants three; a checkpoint after every second."""
    settings: dict[str, Any] = {
        "steps": 5,
        "problems_per_step": 4,
        "group_size": 4,
        "oversample": 2.0,
        "optimizer": {"lr": 3e-3},
        "checkpoint_every": 2,
        **VARIANTS[variant],
    }
    return RlSpec.model_validate({"settings": settings, "domains": [STEADY]})


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Reporter(ListReporter):
    """Dies at the end of the last step."""

    def __init__(self, may_die: threading.Event, last_step: int) -> None:
        super().__init__()
        self.may_die, self.last_step = may_die, last_step

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        if step == self.last_step and self.may_die.wait(LIMIT_S):
            _die()


class DyingStore(Store):
    """Dies after the first note of step 3, or takes its time with a checkpoint's manifest."""

    def __init__(self, root: str, moment: str) -> None:
        super().__init__(root)
        self.moment = moment
        self.sampling_step_3 = False
        self.never = threading.Event()
        self.may_die = threading.Event()
        """where it is beside a checkpoint: that of step 4 is there but for its manifest"""
        if moment != "beside-checkpoint":
            self.may_die.set()

    def write(self, path: str, data: bytes, *, sync: bool = False) -> None:
        if path.endswith("step-00000004-a2/manifest.json"):
            self.may_die.set()
            self.never.wait(LIMIT_S)
        super().write(path, data, sync=sync)
        self.sampling_step_3 |= "/takes/00000002/" in path
        if self.moment == "mid-generation" and self.sampling_step_3 and "/rollouts/" in path:
            _die()


def context_of(root: Path, name: str, model: Path) -> StageContext:
    """Room for a policy and a critic."""
    return stage_context(root, name, {"model": model}, pool=Resources(trainer_ranks=2, servers=1))


def main(root: Path, model: Path, moment: str, variant: str) -> None:
    name = f"cut-{variant}"
    context = context_of(root, name, model)
    attempt = int((root / name / "attempts").read_text())
    store = DyingStore(f"file://{root / name / 'store'}", moment)
    context.checkpoints = StageCheckpoints(store, "test", "0" * 64, attempt, context.scratch)
    spec = rl_spec(variant)
    if moment in ("beside-checkpoint", "after-training"):
        context.reporter = Reporter(store.may_die, spec.settings.steps)
    asyncio.run(run_rl(spec, context))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
