"""Commands in a home of many runs, on a store of many artifacts."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
from collections.abc import Callable, Sequence

from flows.catalog import plan_of
from flows.command.app import CommandConsole
from flows.command.models.collect import collect
from flows.command.models.named_artifacts import locate_artifact, show_artifacts
from flows.command.runs_command import show_runs
from flows.command.top import show_top
from flows.load import load_recipe
from flows.plan import EVALUATE, PlannedStage
from flows.post_train import plan_distill_rounds
from flows.reasons import planned_identities
from flows.running.new_run import new_run
from flows.running.records import RunRecord, RunState, StageRecord
from infra.home import seal
from infra.store.manifest import Manifest
from infra.store.store import FileRecord
from tasks.durable.claims import Claims, End, Owner
from tasks.durable.protocol import job_path
from tasks.durable.stage_identity import StageIdentity, spec_content
from tasks.evaluate.score_tables import ANY, alone
from tasks.evaluate.spec import EvaluateSpec
from tests.programs.growth.meter import Figure, Meter
from tests.programs.growth.registry import HISTORY, WORK, grows

RUNS = (20, 80, 320)
"""each with `STAGES` artifacts of its own"""
STAGES = ("base", "agent-sft", "agent-rl", "distill", EVALUATE)
MODEL, CONTENT = "model.safetensors", b"{}"
KINDS = ("base", "sft", "rl", "distill", "evaluate")


def _made(runs: int) -> None:
    """Put runs on record that are over, their artifacts in the store."""
    recipe = load_recipe("cpu-smoke")
    for number in range(runs):
        record = new_run(recipe, "post-train", {}, name=f"run{number}", in_process=True)
        record.put_state(RunState(state="completed", started=1.0, seconds=60.0))
        for stage, kind in zip(STAGES, KINDS, strict=True):
            _put(record, number, stage, kind)


def _put(record: RunRecord, number: int, stage: str, kind: str) -> None:
    digest = _digest(number, stage)
    place, job = f"artifacts/{kind}/{digest[:12]}", f"{record.run}--{stage}--{digest[:12]}"
    inputs = {"agent": _digest(number, "agent-rl")} if kind == EVALUATE else {}
    manifest = Manifest(
        kind=kind, digest=digest, attempt=1, identity={"settings": {}, "home": {}}, inputs=inputs,
        files=[FileRecord(path=MODEL, size=2, sha256=hashlib.sha256(CONTENT).hexdigest())],
        code={"commit": "c" * 40}, seeds={}, metrics={"loss": 0.5}, mlflow_run_id="", seconds=9.0,
        created=1000.0 + number, libraries={}, machine={}, run=record.run, stage=stage,
    )  # fmt: skip
    store, claims = record.store, Claims(record.store, kind, digest)
    store.write(f"{place}/a1/{MODEL}", CONTENT)
    store.write(f"{place}/manifest.json", seal(manifest.model_dump_json()))
    claims.take(1, Owner(home="h", launcher="ray", job=job, run=record.run))
    claims.finish(1, End(outcome="done", exit_code=0))
    store.write(job_path(job), json.dumps({"stage": stage}).encode())
    record.put_stage(
        StageRecord(
            name=stage, kind=kind, digest=digest, state="completed", mine=True,
            artifact=store.url(f"{place}/a1"), started=1.0,
        )
    )  # fmt: skip


def _digest(number: int, stage: str) -> str:
    return hashlib.sha256(f"{number}/{stage}".encode()).hexdigest()


def _commanded(size: int, meter: Meter, command: Callable[[CommandConsole], object]) -> None:
    """The command's cost in a home of so many runs."""
    meter.apart(lambda: _made(size))
    with contextlib.redirect_stdout(io.StringIO()):
        console = CommandConsole()
        command(console)  # what is looked up once a process
        with meter.counting():
            command(console)


@grows("`tributary runs`", "runs", RUNS, calls=HISTORY)
def runs(size: int, meter: Meter) -> None:
    _commanded(size, meter, lambda console: show_runs(20, False, console))


@grows("`tributary top`", "runs", RUNS, calls=HISTORY)
def top(size: int, meter: Meter) -> None:
    _commanded(size, meter, lambda console: show_top(True, 1, True, console))


@grows("`tributary artifacts`", "runs", RUNS, calls=WORK, cpu_s=WORK, memory=WORK)
def artifacts(size: int, meter: Meter) -> None:
    _commanded(size, meter, lambda console: show_artifacts("", "", "", False, console))


@grows("`tributary artifacts --run`", "runs", RUNS, calls=HISTORY)
def artifacts_of_a_run(size: int, meter: Meter) -> None:
    _commanded(size, meter, lambda console: show_artifacts("run0", "", "", False, console))


@grows("an artifact by run and stage", "runs", RUNS, calls=HISTORY)
def by_stage(size: int, meter: Meter) -> None:
    _commanded(size, meter, lambda _: locate_artifact("run0/agent-rl", ""))


@grows("an artifact by its digest", "runs", RUNS, calls=HISTORY)
def by_digest(size: int, meter: Meter) -> None:
    digest = _digest(0, "agent-rl")
    _commanded(size, meter, lambda _: locate_artifact(digest[:12], ""))


@grows("`tributary artifacts gc`", "runs", RUNS, calls=WORK, cpu_s=WORK, memory=WORK)
def gc(size: int, meter: Meter) -> None:
    _commanded(size, meter, lambda console: collect(3, False, False, "", console))


@grows("digests of a plan", "stages", (11, 44, 176), cpu_s=WORK)
def digests(size: int, meter: Meter) -> None:
    plan = list(plan_of("post-train", load_recipe("cpu-demo"), {}))
    planned_identities(plan)
    with meter.counting():
        for _ in range(size // 11):
            planned_identities(plan[:11])


@grows("models that a further round evaluates", "rounds before", (2, 8, 32), calls=HISTORY)
def rounds(size: int, meter: Meter) -> None:
    recipe = load_recipe("cpu-demo")
    expert = next(iter(recipe.experts))
    known = _evaluated(plan_distill_rounds(recipe, expert, size))
    plan = plan_distill_rounds(recipe, expert, size + 1)
    with meter.counting():
        wanted = _evaluated(plan)
    assert wanted - known
    meter.count(Figure.CALLS, len(wanted - known))


def _evaluated(plan: Sequence[PlannedStage]) -> set[str]:
    """The digests under which the results of each model are kept."""
    identities, found = planned_identities(plan), set[str]()
    (stage,) = (stage for stage in plan if isinstance(stage.spec, EvaluateSpec))
    spec, whole = stage.spec, identities[stage.name]
    assert isinstance(spec, EvaluateSpec)
    for name, digest in whole.inputs.items():
        content = spec_content(alone(spec, name))
        found.add(StageIdentity(whole.kind, content, {ANY: digest}, whole.code).digest)
    return found
