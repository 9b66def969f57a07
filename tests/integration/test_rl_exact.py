"""An RL stage ends with the same bits however often it was killed on the way."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import ray
from safetensors.numpy import load_file

from engines.rollout.gallery import read_rollouts
from tasks import rl
from tasks.stage import StageContext
from tests.integration.rl_victim import MOMENTS, rl_spec
from tests.stage_parts import ListReporter, stage_context

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

_TIMES = ("seconds", "_per_s", "mfu", "recovered")


def result(context: StageContext) -> tuple[bytes, list[Any], dict[int, dict[str, float]]]:
    """Weights, shown rollouts and metrics, less what a clock says."""
    reporter = context.reporter
    assert isinstance(reporter, ListReporter)
    steps = {
        step: {k: v for k, v in values.items() if not any(t in k for t in _TIMES)}
        for step, values in reporter.steps.items()
    }
    shown = list(read_rollouts(context.out / "rollouts.parquet"))
    return (context.out / "model.safetensors").read_bytes(), shown, steps


def die(root: Path, model: Path, moment: str) -> str:
    """Run the stage `cut` in a process of its own until it kills itself at the moment; -> what it
    wrote to stderr."""
    address = ray.get_runtime_context().gcs_address
    command = [sys.executable, "-P", "-m", "tests.integration.rl_victim", root, model, moment]
    done = subprocess.run(
        [str(part) for part in command],
        env=os.environ | {"RAY_ADDRESS": address, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, f"{moment}: {done.stdout}\n{done.stderr[-4000:]}"
    return done.stderr


async def test_killed_at_every_moment_it_ends_with_the_bits_of_a_run_nobody_disturbed(
    cluster: None, stage_root: Path, small_base: Path
) -> None:
    inputs = {"model": small_base}
    whole = stage_context(stage_root, "whole", inputs)
    await rl.run(rl_spec(), whole)
    weights, shown, steps = result(whole)
    assert sorted(steps) == [1, 2, 3, 4, 5]
    assert all(step["update_skipped"] == 0 for step in steps.values())
    assert _changed(small_base, whole.out)

    said = [await asyncio.to_thread(die, stage_root, small_base, moment) for moment in MOMENTS]
    assert "step-00000004-a2" in said[-1]
    assert "is torn; passed over" in said[-1]
    rest = stage_context(stage_root, "cut", inputs)
    await rl.run(rl_spec(), rest)
    assert isinstance(rest.reporter, ListReporter)
    fifth = rest.reporter.steps[5]
    assert fifth["rollouts_recovered"] == 4 * fifth["groups_rolled"], "none is made twice"
    last, shown_last, steps_last = result(rest)
    assert last == weights
    assert shown_last == shown
    assert steps_last == {step: values for step, values in steps.items() if step in steps_last}


def _changed(before: Path, after: Path) -> bool:
    one, two = (load_file(folder / "model.safetensors") for folder in (before, after))
    return any((one[name] != two[name]).any() for name in one)
