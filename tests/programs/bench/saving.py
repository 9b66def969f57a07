"""What checkpoints cost an RL stage of the demo's shapes.

How long they stop the loop is measured on a whole stage, on Ray. They go on beside the next step
and take processor time there: that of one save is measured by itself, in this process.
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
import tempfile
from functools import partial
from pathlib import Path

from engines.algorithms.spec import Algorithm
from engines.step_inputs import StepInputs
from tasks.policy import Bounds
from tasks.rl.body import run as run_rl
from tasks.rl.spec import RlSettings, RlSpec
from tasks.stage import Resources
from tests.parts.ray_parts import own_ray
from tests.parts.recipe_parts import domain_of, settings_of
from tests.parts.stage_parts import stage_context
from tests.programs.bench.clock import timed
from tests.programs.bench.rows import Row
from tests.programs.bench.trainer import rl_samples
from tests.programs.bench.workbench import Workbench

EXPERT = "reasoning"
STEPS, EVERY = 11, 5
SAVES = 5
SHARE, SECONDS = 0.05, 0.15
"""most of a step's time that a checkpoint at every 5 steps may take, or seconds a step"""


def measure(bench: Workbench) -> list[Row]:
    return [_stopped(bench), _processor(bench)]


def _processor(bench: Workbench) -> Row:
    """CPU seconds of one save: the rank's part, then checksums, store and retention."""
    trainer = bench.trainer()
    samples = rl_samples(bench, trainer)
    step = min(
        timed(lambda: trainer.rl_step(StepInputs(samples, Algorithm(), gate=False))).cpu
        for _ in "abc"
    )
    context = stage_context(bench.folder, "save", {})
    ranks: list[float] = []
    store: list[float] = []
    for number in range(SAVES + 1):
        folder = context.scratch / f"checkpoint-{number}"
        folder.mkdir()
        ranks.append(timed(lambda to=folder: trainer.save(to)).cpu)
        keep = partial(context.checkpoints.save, number, folder, 0.0)
        store.append(timed(keep).cpu)
    whole = statistics.median(map(sum, zip(ranks[1:], store[1:], strict=True)))
    share = whole / (EVERY * step)
    return Row(
        "checkpoint, CPU seconds of one save",
        whole,
        "s",
        note=f"{share:.1%} of what {EVERY} training steps take; median of {SAVES}:"
        f" rank {statistics.median(ranks[1:]):.3f}, checksums and store"
        f" {statistics.median(store[1:]):.3f}",
    )


def _stopped(bench: Workbench) -> Row:
    expert = bench.recipe.experts[EXPERT]
    # Solving its problems early must not end it.
    bounds = Bounds(solved_reward=9.0)
    settings = settings_of(expert.path, RlSettings).model_copy(
        update={"steps": STEPS, "checkpoint_every": EVERY, "bounds": bounds}
    )
    spec = RlSpec(seed=0, settings=settings, domains=[domain_of(expert)])
    home = Path(tempfile.mkdtemp(prefix="tr-"))  # socket paths are at most 107 bytes long
    try:
        with own_ray({"TRIBUTARY_HOME": str(home)}, num_gpus=0):
            pool = Resources(trainer_ranks=1, servers=1)
            context = stage_context(bench.folder, "saved", {"model": bench.model}, pool=pool)
            summary = asyncio.run(run_rl(spec, context))
    finally:
        shutil.rmtree(home, ignore_errors=True)
    step = summary["work_seconds"] / summary["steps"]
    blocked = summary["checkpoint_seconds"] / summary["steps"]
    return Row(
        f"checkpoint every {EVERY} steps, seconds a step that the loop stands still",
        blocked,
        "s",
        max(SECONDS, SHARE * step),
        True,
        f"{blocked / step:.2%} of {step:.2f} s; {STEPS // EVERY} checkpoints in {STEPS} steps",
    )
