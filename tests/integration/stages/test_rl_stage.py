"""RL, OPD, evaluate and distill bodies on a real trainer, real servers and a real Ray."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from pyarrow.parquet import read_table

from engines.chat import Chat
from engines.rollout.records.dataset import dataset_rows, read_admitted, read_formats
from engines.rollout.records.gallery import read_rollouts
from engines.rollout.records.packing import pack_groups, saved_groups, unpack_groups
from engines.weights.spec import WeightTransport
from infra.errors import TrainingStopped
from infra.store.artifacts import StageCheckpoints
from infra.store.removal import NoteKind
from infra.store.store import Store
from infra.timeline import CHECKPOINTS, LANES, TRACE_FILE, TRAINER, read_trace
from tasks.distill.body import run as run_distill
from tasks.distill.spec import DistillSpec
from tasks.evaluate.body import run as run_evaluate
from tasks.evaluate.spec import EvaluateSpec
from tasks.offline.body import run as run_offline
from tasks.offline.spec import OfflineSpec
from tasks.opd.body import run as run_opd
from tasks.opd.spec import OpdSpec
from tasks.replay.body import run as run_replay
from tasks.replay.body import weight_difference
from tasks.replay.spec import ReplaySpec
from tasks.rl.body import run as run_rl
from tasks.rl.spec import RlSpec
from tasks.rollout.body import run as run_rollout
from tasks.rollout.spec import RolloutSpec
from tasks.screen.body import run as run_screen
from tasks.screen.spec import PASS_RATES_FILE, ScreenSpec
from tasks.stage import Resources, StageContext, StageResources, StageSpec, Stopped
from tests.integration.megatron.megatron_models import varied
from tests.parts.stage_parts import STEADY, ListReporter, scored, stage_context

pytestmark = pytest.mark.integration

SHORT = {**STEADY, "max_new_tokens": 12}
# Every group gets a spread, without which no step updates.
GRADED = {"name": "tests.parts.stage_parts:grade_of_content"}
DOMAIN = {**SHORT, "rewards": [STEADY["rewards"][0], GRADED]}


class StopsAfterNote(StageCheckpoints):
    """Asks its stage to stop once rollouts are durable."""

    def __init__(self, context: StageContext, folder: Path) -> None:
        super().__init__(Store(f"file://{folder}/store"), "test", "0" * 64, 1, context.scratch)
        self._stop = context.stop

    def note(self, kind: NoteKind, number: int, data: bytes) -> None:
        super().note(kind, number, data)
        self._stop.requested = True


def rl_spec(steps: int) -> RlSpec:
    settings = {
        "steps": steps,
        "problems_per_step": 4,
        "group_size": 4,
        "optimizer": {"lr": 1e-2},
        "checkpoint_every": 2,
        "keep_rollouts": True,
        "evaluate": {"every": 2, "problems": 8, "samples": 2},
    }
    return RlSpec.model_validate({"settings": settings, "domains": [DOMAIN]})


async def test_rl_trains_stops_resumes_and_leaves_a_model_that_others_can_use(
    cluster: None, stage_root: Path, small_base: Path
) -> None:
    """One test for the chain: each engine start it saves is seconds."""
    root, model = stage_root, small_base
    first = stage_context(root, "rl", {"model": model})
    first.stop.requested = True
    with pytest.raises(Stopped, match="after step 1"):
        await run_rl(rl_spec(3), first)

    folder = root / "weights"
    by_delta = WeightTransport(transport="disk_delta", url=str(folder))
    resources = StageResources(weights=by_delta)
    second = stage_context(root, "rl", {"model": model}, resources=resources)
    metrics = await run_rl(rl_spec(3), second)
    reporter = second.reporter
    assert isinstance(reporter, ListReporter)
    assert sorted(reporter.steps) == [0, 1, 2, 3], "the checkpoint's steps are reported again"
    assert [reporter.steps[n]["version"] for n in (2, 3)] == [2.0, 3.0]
    assert metrics["steps"] == 3.0
    assert [path.name for path in folder.iterdir()] == ["test-rl"], "published through the folder"
    for number in (1, 2, 3):
        step = reporter.steps[number]
        assert 0 < step["mismatch_mean"] <= 2e-5
        assert step["entropy"] > 0
        assert step["publish_bytes"] > 0
        assert step["groups_kept"] == 4
        assert 0 < step["turns_in_flight_mean"] <= step["turns_in_flight_max"]
    shown = list(read_rollouts(second.out / "rollouts.parquet"))
    versions = {
        label: {v for r in shown if r.label == label for v in r.weight_versions}
        for label in dict.fromkeys(r.label for r in shown)
    }
    assert versions == {
        "evaluation after step 0": {-1, 0},
        "step 1": {-1, 0},
        "step 2": {-1, 1},
        "evaluation after step 2": {-1, 2},
        "step 3": {-1, 2},
        "evaluation after step 3": {-1, 3},
    }
    _has_a_timeline(second.out)

    assert await _replays(root, rl_spec(3), second, {"model": model}) == 0
    step = second.out / "trained" / "00000002.bin"
    groups = unpack_groups(step.read_bytes())
    groups[0].samples[0].reward += 1
    step.write_bytes(pack_groups(groups))
    assert await _replays(root, rl_spec(3), second, {"model": model}) > 0
    await _learns_from_saved_rollouts(root, model)
    await _screens(root, model)
    said = await _evaluates_differently(root, model, second.out)
    for name, steps in (("base", 0), ("general", 3)):
        label = f"evaluation after step {steps}"
        then = {r.problem_id: r.response for r in shown if r.label == label}
        assert then
        assert then.items() <= said[name].items(), "the stage that evaluates hears the same"
    await _distills_to_rows(root, model, second.out)


async def _replays(
    root: Path, spec: StageSpec, done: StageContext, inputs: dict[str, Path]
) -> float:
    """How many tensors differ after a stage was trained again on the rollouts that it kept."""
    context = stage_context(root, f"{done.name}-replay", {**inputs, "rollouts": done.out})
    shutil.rmtree(root / context.name / "store", ignore_errors=True)
    metrics = await run_replay(ReplaySpec.of(spec), context)
    assert metrics["steps"] == 3.0
    assert isinstance(context.reporter, ListReporter)
    assert [s["version"] for s in context.reporter.steps.values()] == [1.0, 2.0, 3.0]
    return metrics["tensors_differing"]


async def _learns_from_saved_rollouts(root: Path, model: Path) -> None:
    rollout = stage_context(root, "rollout", {"model": model})
    sampling = {"settings": {"problems": 6, "group_size": 4}, "domains": [DOMAIN]}
    metrics = await run_rollout(RolloutSpec.model_validate(sampling), rollout)
    assert (metrics["groups"], metrics["rollouts"]) == (6.0, 24.0)
    assert len(list(read_rollouts(rollout.out / "rollouts.parquet"))) == 12
    assert [group.ticket for group in saved_groups(rollout.out)] == list(range(6))

    learning = {"steps": 2, "problems_per_step": 4, "optimizer": {"lr": 1e-2}}
    offline = stage_context(root, "offline", {"model": model, "rollouts": rollout.out})
    metrics = await run_offline(OfflineSpec.model_validate({"settings": learning}), offline)
    assert metrics["passes"] == 2 * 4 / 6
    assert isinstance(offline.reporter, ListReporter)
    steps = offline.reporter.steps
    assert [steps[n]["staleness_max"] for n in (1, 2)] == [0.0, 1.0]
    assert 0 < steps[1]["mismatch_mean"] <= 2e-5, "the first step's weights sampled all"
    assert weight_difference(offline.out, model).differing


async def _screens(root: Path, model: Path) -> None:
    """Each problem's answers are counted, those that none solved get more, and only the pool goes
    on."""
    context = stage_context(root, "screen", {"model": model})
    settings = {
        "problems": {"rl": 6}, "first": 2, "most": 4,
        "keep": ["moderate", "hard", "solved", "never"],
    }  # fmt: skip
    spec = ScreenSpec.model_validate({"settings": settings, "domains": [scored(DOMAIN)]})
    metrics = await run_screen(spec, context)
    rates = read_table(context.out / PASS_RATES_FILE).to_pylist()
    assert [row["judged"] for row in rates] == [2 if row["right"] else 4 for row in rates]
    assert metrics["rollouts"] == sum(row["judged"] for row in rates)
    assert [row.problem.id for row in read_admitted(context.out)] == [
        row["problem_id"] for row in rates
    ]
    again = stage_context(root, "screen", {"model": model})
    assert {**await run_screen(spec, again), "work_seconds": 0} == {**metrics, "work_seconds": 0}
    solved = {"problems": {"rl": 6}, "first": 2, "keep": ["solved"]}
    only = ScreenSpec.model_validate({"settings": solved, "domains": [scored(DOMAIN)]})
    with pytest.raises(TrainingStopped, match="none of 6 problems of general, rl is solved"):
        await run_screen(only, stage_context(root, "screen-only", {"model": model}))


def _has_a_timeline(trained: Path) -> None:
    trace = read_trace((trained / TRACE_FILE).read_bytes())
    assert {e.lane for e in trace.events} | {CHECKPOINTS} == set(LANES), "one may still be written"
    named = {(e.part, e.name) for e in trace.events if e.lane == TRAINER}
    assert {(part, what) for part in (1, 2) for what in ("wait", "train", "publish")} <= named
    assert {"turns in flight", "tickets rolling", "groups waiting"} == set(trace.counts)
    assert max(p.value for p in trace.counts["turns in flight"]) > 1


async def _evaluates_differently(
    root: Path, model: Path, trained: Path
) -> dict[str, dict[str, str]]:
    """-> what both models answer at temperature 1, by problem."""
    inputs = {"base": model, "general": trained}
    context = stage_context(root, "evaluate", inputs)
    spec = EvaluateSpec.model_validate(
        {
            "settings": {"problems": 8, "samples": 2, "samples_elsewhere": 2},
            "domains": [scored(SHORT)],
            "home": {"general": ["general"]},
        }
    )
    await run_evaluate(spec, context)
    cut = stage_context(root, "evaluate-cut", inputs)
    cut.checkpoints = StopsAfterNote(cut, root / "evaluate-cut")
    with pytest.raises(Stopped):
        await run_evaluate(spec, cut)
    resumed = stage_context(root, "evaluate-cut", inputs)
    metrics = await run_evaluate(spec, resumed)
    assert 0 < metrics["rollouts_recovered"] < 8 * (2 + 2 + 1)
    for name in ("scores.json", "rollouts.parquet"):
        assert (resumed.out / name).read_bytes() == (context.out / name).read_bytes()
    tables = json.loads((context.out / "scores.json").read_text())
    assert set(tables["scores"]) == {"base", "general"}
    assert set(tables["greedy"]) == {"general"}
    rows = list(read_rollouts(context.out / "rollouts.parquet"))
    by_model = {
        name: {r.problem_id: r.response for r in rows if r.label == f"{name} score"}
        for name in ("base", "general")
    }
    assert by_model["base"].keys() == by_model["general"].keys()
    assert by_model["base"] != by_model["general"]
    return by_model


async def _distills_to_rows(root: Path, model: Path, trained: Path) -> None:
    records = {"general": {"digest": "d" * 64}, "base": {"digest": "b" * 64}}
    given = {"inputs": {"general": trained, "base": model}, "records": records}
    context = stage_context(root, "distill", **given)
    domain = scored({**STEADY, "max_new_tokens": 200})
    spec = DistillSpec.model_validate(
        {
            "settings": {"problems": 32, "min_outcome": 0.0},
            "domains": [domain, {**domain, "name": "base"}],
        }
    )
    metrics = await run_distill(spec, context)
    counts = json.loads((context.out / "counts.json").read_text())
    rows = list(dataset_rows(context.out))
    # a random model rarely ends its answer, and more rarely with its thought closed
    assert rows, counts
    of_chat = Chat.load(model).format_checksum
    assert read_formats(context.out) == {"general": of_chat, "base": of_chat}
    for name in ("general", "base"):
        of_expert = [r for r in rows if r.expert == name]
        assert counts[name]["sampled"] == 32
        assert counts[name]["kept"] == len(of_expert) == metrics[f"{name}/kept"]
        assert sum(counts[name].values()) == 32 + 32
        assert {r.artifact_digest for r in of_expert} <= {records[name]["digest"]}
        assert all(r.problem.id.startswith("general/distill/") for r in of_expert)

    cut = stage_context(root, "distill-cut", **given)
    cut.checkpoints = StopsAfterNote(cut, root / "distill-cut")
    with pytest.raises(Stopped):
        await run_distill(spec, cut)
    resumed = stage_context(root, "distill-cut", **given)
    metrics = await run_distill(spec, resumed)
    assert 0 < metrics["rollouts_recovered"] < 64
    for name in ("data.parquet", "counts.json"):
        assert (resumed.out / name).read_bytes() == (context.out / name).read_bytes()


def opd_spec() -> OpdSpec:
    settings = {
        "steps": 3,
        "problems_per_step": 8,
        "group_size": 2,
        "optimizer": {"lr": 2e-3},
        "checkpoint_every": 2,
        "keep_rollouts": True,
    }
    rewards = [{"name": "constraints", "outcome": True}]  # all alike: none of them trains
    domains = [{**DOMAIN, "name": name, "rewards": rewards} for name in ("twin", "master")]
    return OpdSpec.model_validate({"settings": settings, "domains": domains})


async def test_opd_asks_a_served_teacher_about_its_domain(
    cluster: None, stage_root: Path, small_base: Path, tmp_path: Path
) -> None:
    master = varied(small_base, tmp_path / "master", seed=1, scale=5.0)
    inputs = {"model": small_base, "twin": small_base, "role.master-teacher": master}
    spec = opd_spec()
    served = {"master": {"model": "base"}}
    settings = {**spec.settings.model_dump(), "steps": 1, "served_teachers": served}
    spec = OpdSpec.model_validate({"settings": settings, "domains": spec.domains})
    pool = Resources(trainer_ranks=1, servers=2)
    context = stage_context(stage_root, "opd-served", inputs, pool=pool)
    await run_opd(spec, context)
    assert isinstance(context.reporter, ListReporter)
    step = context.reporter.steps[1]
    assert abs(step["teacher_kl_twin"]) < 1e-4
    assert step["teacher_kl_master"] > 0.1


async def test_opd_hears_each_domains_teacher_and_ends_alike_when_stopped_on_the_way(
    cluster: None, stage_root: Path, small_base: Path, tmp_path: Path
) -> None:
    master = varied(small_base, tmp_path / "master", seed=1, scale=5.0)
    inputs = {"model": small_base, "twin": small_base, "master": master}
    whole = stage_context(stage_root, "opd", inputs)
    summary = await run_opd(opd_spec(), whole)
    assert {"teacher_kl_first", "teacher_kl_last"} <= summary.keys()
    assert isinstance(whole.reporter, ListReporter)
    steps = whole.reporter.steps
    # The student begins as one of its teachers: had they been mixed up, this would not be 0.
    assert abs(steps[1]["teacher_kl_twin"]) < 1e-4
    assert steps[1]["teacher_kl_master"] > 0.1
    for step in steps.values():
        assert step["groups_kept"] == step["groups_rolled"] == 8
        assert step["update_skipped"] == 0
        assert {"outcome_mean_twin", "reward_mean", "entropy", "mismatch_mean"} <= step.keys()

    first = stage_context(stage_root, "opd-cut", inputs)
    first.stop.requested = True
    with pytest.raises(Stopped, match="after step 1"):
        await run_opd(opd_spec(), first)
    rest = stage_context(stage_root, "opd-cut", inputs)
    await run_opd(opd_spec(), rest)
    weights = [(c.out / "model.safetensors").read_bytes() for c in (whole, rest)]
    assert weights[0] == weights[1]
    assert await _replays(stage_root, opd_spec(), rest, inputs) == 0
