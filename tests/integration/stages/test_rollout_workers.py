"""Rollout workers give the bits of a stage that rolls out in its own process."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from infra.errors import InputError
from infra.store.artifacts import StageCheckpoints
from infra.store.store import Store
from tasks.evaluate.body import run as run_evaluate
from tasks.evaluate.spec import EvaluateSpec
from tasks.rl.body import run as run_rl
from tasks.rl.spec import RlSpec
from tasks.stage import Resources, StageContext, StageResources
from tests.integration.stages.rl_victim import rl_spec
from tests.integration.stages.test_rl_exact import result
from tests.parts.stage_parts import STEADY, ListReporter, scored, stage_context

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

LIMIT_S = 60.0


def context_of(root: Path, name: str, model: Path, workers: int) -> StageContext:
    return stage_context(
        root,
        name,
        {"model": model},
        resources=StageResources(rollout_workers=workers),
        pool=Resources(trainer_ranks=1, servers=1),
    )


def worker_pids() -> set[int]:
    found: set[int] = set()
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if "RolloutWorkerActor" in " ".join(process.cmdline()):
                found.add(process.pid)
    return found


def wait_for_workers(count: int) -> set[int]:
    """Those there are when there are so many."""
    deadline = time.monotonic() + LIMIT_S
    while len(pids := worker_pids()) != count and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(pids) == count, pids
    return pids


class KillingStore(Store):
    """Kills a rollout worker when the first rollouts of step 2 are noted, and does not let step 2
    be taken before there is another one."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.killed = 0
        self.after: set[int] = set()
        """the workers when step 2 is taken"""
        self._is_step_1_over = False

    def write(self, path: str, data: bytes, *, sync: bool = False) -> None:
        super().write(path, data, sync=sync)
        self._is_step_1_over |= "/takes/00000001/" in path
        if self._is_step_1_over and "/rollouts/" in path and not self.killed:
            self.killed = min(wait_for_workers(2))
            os.kill(self.killed, signal.SIGKILL)
        if "/takes/00000002/" in path:
            self.after = wait_for_workers(2)


def short(spec: RlSpec) -> RlSpec:
    return spec.model_copy(update={"settings": spec.settings.model_copy(update={"steps": 2})})


async def test_workers_one_of_them_killed_give_the_bits_of_a_stage_that_rolls_out_itself(
    cluster: None, stage_root: Path, small_base: Path
) -> None:
    spec = short(rl_spec())
    here = context_of(stage_root, "rolls-here", small_base, 0)
    await run_rl(spec, here)
    wait_for_workers(0)

    apart = context_of(stage_root, "rolls-apart", small_base, 2)
    store = KillingStore(f"file://{stage_root / 'rolls-apart' / 'store'}")
    apart.checkpoints = StageCheckpoints(store, "test", "0" * 64, 1, apart.scratch)
    await run_rl(spec, apart)

    assert store.killed
    assert store.killed not in store.after
    wait_for_workers(0)
    assert sorted(result(here)[2]) == [1, 2]
    assert result(apart) == result(here)
    reporter = apart.reporter
    assert isinstance(reporter, ListReporter)
    assert all(reporter.steps[step]["turns_in_flight_max"] > 0 for step in (1, 2))


async def test_models_that_are_scored_in_workers_have_the_scores_and_rollouts_of_one_process(
    cluster: None, stage_root: Path, small_base: Path
) -> None:
    """Two models one after the other, by the same workers."""
    settings = {"problems": 4, "samples": 2, "fleet": rl_spec().settings.fleet}
    home = {"first": ["general"], "second": ["general"]}
    spec = EvaluateSpec.model_validate(
        {"settings": settings, "domains": [scored(STEADY)], "home": home}
    )
    made: list[dict[str, bytes]] = []
    for name, workers in (("scored-here", 0), ("scored-apart", 1)):
        context = context_of(stage_root, name, small_base, workers)
        context.inputs = dict.fromkeys(home, small_base)
        await run_evaluate(spec, context)
        made.append({file.name: file.read_bytes() for file in context.out.iterdir()})
    wait_for_workers(0)
    assert made[0].keys() == {"scores.json", "rollouts.parquet"}
    assert made[0] == made[1]


async def test_a_part_that_cannot_be_built_in_a_worker_is_bad_input(
    cluster: None, stage_root: Path, small_base: Path
) -> None:
    rewards = [STEADY["rewards"][0], {"name": "tests.parts.stage_parts:nothing_of_this_name"}]
    domain = {**STEADY, "rewards": rewards}
    spec = RlSpec.model_validate({"settings": rl_spec().settings, "domains": [domain]})
    with pytest.raises(InputError, match="nothing_of_this_name"):
        await run_rl(spec, context_of(stage_root, "unbuilt", small_base, 1))
    wait_for_workers(0)
