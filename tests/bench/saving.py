"""What checkpoints cost an RL stage of the demo's shapes: the whole stage, on Ray."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path

from tasks import rl
from tasks.stage import Resources
from tests.bench.rows import Row
from tests.bench.workbench import Workbench
from tests.ray_parts import own_ray
from tests.stage_parts import stage_context

EXPERT = "reasoning"
STEPS, EVERY = 11, 5
SHARE, SECONDS = 0.05, 0.15
"""most of a step's time that a checkpoint at every 5 steps may take, or seconds a step"""


def measure(bench: Workbench) -> list[Row]:
    expert = bench.recipe.experts[EXPERT]
    # Solving its problems early must not end it.
    bounds = rl.Bounds(solved_reward=9.0)
    settings = expert.rl.model_copy(
        update={"steps": STEPS, "checkpoint_every": EVERY, "bounds": bounds}
    )
    spec = rl.RlSpec(seed=0, settings=settings, domains=[expert.domain])
    home = Path(tempfile.mkdtemp(prefix="tr-"))  # socket paths are at most 107 bytes long
    try:
        with own_ray({"TRIBUTARY_HOME": str(home)}, num_gpus=0):
            pool = Resources(trainer_ranks=1, servers=1)
            context = stage_context(bench.folder, "saved", {"model": bench.model}, pool=pool)
            summary = asyncio.run(rl.run(spec, context))
    finally:
        shutil.rmtree(home, ignore_errors=True)
    step = summary["work_seconds"] / summary["steps"]
    blocked = summary["checkpoint_seconds"] / summary["steps"]
    return [
        Row(
            f"checkpoint every {EVERY} steps, seconds a step",
            blocked,
            "s",
            max(SECONDS, SHARE * step),
            True,
            f"{blocked / step:.2%} of {step:.2f} s; {STEPS // EVERY} checkpoints in {STEPS} steps",
        )
    ]
