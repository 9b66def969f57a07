"""An RL stage ends with the same bits however often it was killed on the way."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import ray
from safetensors.numpy import load_file

from engines.rollout.records.gallery import read_rollouts
from infra.timeline import TRACE_FILE, read_trace
from tasks.replay.body import run as run_replay
from tasks.replay.spec import ReplaySpec
from tasks.rl.body import run as run_rl
from tasks.rl.curve import CURVE_FILE, Curve
from tasks.stage import StageContext
from tests.integration.stages.rl_victim import MOMENTS, context_of, rl_spec
from tests.parts.stage_parts import ListReporter, stage_context

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

_NOT_COMPARED = ("seconds", "_per_s", "mfu", "recovered", "in_flight", "kv_use", "eval_")


def result(context: StageContext) -> tuple[list[bytes], list[Any], dict[int, dict[str, float]]]:
    """Weights of all roles, shown rollouts and metrics of training, less what a clock says."""
    reporter = context.reporter
    assert isinstance(reporter, ListReporter)
    steps = {
        step: kept
        for step, values in reporter.steps.items()
        if (kept := {k: v for k, v in values.items() if not any(t in k for t in _NOT_COMPARED)})
    }
    rows = read_rollouts(context.out / "rollouts.parquet")
    shown = [row for row in rows if row.label.startswith("step")]
    weights = sorted(context.out.rglob("*.safetensors"))
    return [file.read_bytes() for file in weights], shown, steps


def die(root: Path, model: Path, moment: str, variant: str) -> str:
    """Run the stage `cut-VARIANT` in a process of its own until it kills itself at the moment; ->
    what it wrote to stderr."""
    address = ray.get_runtime_context().gcs_address
    command = [sys.executable, "-P", "-m", "tests.integration.stages.rl_victim"]
    command += [root, model, moment, variant]
    done = subprocess.run(
        [str(part) for part in command],
        env=os.environ | {"RAY_ADDRESS": address, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, f"{moment}: {done.stdout}\n{done.stderr[-4000:]}"
    return done.stderr


async def resumed(root: Path, model: Path, variant: str, moments: Sequence[str]) -> StageContext:
    """The stage after a kill at each of the moments and a last attempt to its end."""
    for moment in moments:
        await asyncio.to_thread(die, root, model, moment, variant)
    return await finished(root, model, f"cut-{variant}", variant)


async def finished(root: Path, model: Path, name: str, variant: str) -> StageContext:
    """Run the stage of that name to its end, from its last checkpoint if it has one."""
    context = context_of(root, name, model)
    await run_rl(rl_spec(variant), context)
    return context


def check_same(whole: StageContext, rest: StageContext) -> None:
    """Weights, rollouts, and the metrics of every step that the last attempt reported."""
    (weights, shown, steps), (last, shown_last, steps_last) = result(whole), result(rest)
    assert last == weights
    assert shown_last == shown
    assert steps_last == {step: steps[step] for step in steps_last}


async def test_killed_at_every_moment_it_ends_with_the_bits_of_a_run_nobody_disturbed(
    cluster: None, stage_root: Path, small_base: Path
) -> None:
    whole = context_of(stage_root, "whole", small_base)
    spec = rl_spec()
    unwatched = spec.settings.model_copy(update={"evaluate": None})
    await run_rl(spec.model_copy(update={"settings": unwatched}), whole)
    _, _, steps = result(whole)
    assert sorted(steps) == [1, 2, 3, 4, 5]
    assert all(step["update_skipped"] == 0 for step in steps.values())
    assert _changed(small_base, whole.out)

    said = [
        await asyncio.to_thread(die, stage_root, small_base, moment, "grpo") for moment in MOMENTS
    ]
    assert "step-00000004-a2" in said[-1]
    assert "is incomplete; it is skipped" in said[-1]
    rest = context_of(stage_root, "cut-grpo", small_base)
    await run_rl(rl_spec(), rest)
    assert isinstance(rest.reporter, ListReporter)
    fifth = rest.reporter.steps[5]
    assert fifth["rollouts_recovered"] == 4 * fifth["groups_rolled"], "none is made twice"
    check_same(whole, rest)  # which also shows that evaluations change nothing

    assert not Curve.model_validate_json((whole.out / CURVE_FILE).read_bytes()).held_out
    curve = Curve.model_validate_json((rest.out / CURVE_FILE).read_bytes())
    points = curve.held_out["general"]
    assert [(p.step, p.version, p.problems) for p in points] == [
        (0, 0, 8), (2, 2, 8), (4, 4, 8), (5, 5, 8),
    ]  # fmt: skip
    rows = [r for r in read_rollouts(rest.out / "rollouts.parquet") if r.label.startswith("eval")]
    assert len(rows) == 4 * 4, "of four problems each, none twice"
    written = {r.label: [o.response for o in rows if o.label == r.label] for r in rows}
    assert written["evaluation after step 0"] != written["evaluation after step 5"]
    trace = read_trace((rest.out / TRACE_FILE).read_bytes())
    assert {e.part for e in trace.events if e.name == "train"} == {1, 2, 3}, "of each checkpoint"


@pytest.mark.long
async def test_a_critic_killed_with_its_policy_goes_on_with_it_to_the_same_bits(
    cluster: None, stage_root: Path, small_base: Path
) -> None:
    whole = await finished(stage_root, small_base, "whole-ppo", "ppo")
    _, _, steps = result(whole)
    assert [f.parent.name for f in sorted(whole.out.rglob("*.safetensors"))] == ["critic", "out"]
    assert [steps[n]["version"] for n in (1, 2, 3)] == [0, 1, 2], "alone in step 1"
    for step in steps.values():
        assert step["groups_kept"] == step["groups_rolled"] == 4, "no group is replaced"
        assert step["value_loss"] > 0
        assert step["critic_lr"] == pytest.approx(1.5e-2)
    assert steps[1]["explained_variance"] == 0
    assert steps[3]["explained_variance"] != 0
    assert "mismatch_mean" not in steps[1]
    assert steps[2]["mismatch_mean"] <= 2e-5

    check_same(whole, await resumed(stage_root, small_base, "ppo", ["after-training"]))


@pytest.mark.long
async def test_online_dpo_killed_in_mid_generation_ends_with_the_same_bits(
    cluster: None, stage_root: Path, small_base: Path
) -> None:
    whole = await finished(stage_root, small_base, "whole-online-dpo", "online-dpo")
    _, _, steps = result(whole)
    assert sum(step["pairs"] for step in steps.values()) > 0
    assert _changed(small_base, whole.out)
    check_same(whole, await resumed(stage_root, small_base, "online-dpo", ["mid-generation"]))


async def test_beside_training_a_stage_can_be_repeated_from_its_notes_to_the_same_bits(
    cluster: None, stage_root: Path, small_base: Path
) -> None:
    spec = rl_spec("stale")
    kept = {"checkpoint_every": 100, "keep_rollouts": True}
    no_checkpoint = spec.settings.model_copy(update=kept)
    spec = spec.model_copy(update={"settings": no_checkpoint})
    whole = context_of(stage_root, "whole-stale", small_base)
    await run_rl(spec, whole)
    weights, _, steps = result(whole)
    for step in steps.values():
        assert step["update_skipped"] == 0
        assert step["staleness_max"] <= 2
        assert step.get("lag0_mean", 0) <= 2e-5, "of the weights that sampled it"
        assert 0 <= step["rejected_share"] < 1
        assert 0 < step["mismatch_ess"] <= 1
    assert 0 < steps[1]["mismatch_mean"] <= 2e-5
    assert steps[5]["staleness_max"] > 0
    assert steps[5]["mismatch_mean"] > 1e-3, "the policy has moved on"

    again = context_of(stage_root, "whole-stale", small_base)
    await run_rl(spec, again)
    assert isinstance(again.reporter, ListReporter)
    assert again.reporter.steps[1]["rollouts_recovered"] > 0
    assert result(again)[0] == weights

    inputs = {"model": small_base, "rollouts": again.out}
    replay = stage_context(stage_root, "replay-stale", inputs, pool=again.pool)
    assert (await run_replay(ReplaySpec.of(spec), replay))["tensors_differing"] == 0


def _changed(before: Path, after: Path) -> bool:
    one, two = (load_file(folder / "model.safetensors") for folder in (before, after))
    return any((one[name] != two[name]).any() for name in one)
