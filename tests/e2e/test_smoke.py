"""The whole recipe on the whole stack: Prefect, Ray, Megatron-core, SGLang, MLflow, S3 storage.

Its flow is killed on the way, and resumed.
"""

from __future__ import annotations

import re
import signal
from typing import Any

import httpx
import psutil
import pytest

from infra.tracking.rest import MlflowRest
from tests.parts.machine import SMOKE, Machine, settings, until
from tests.parts.page import Page, check_shown, made_by
from tests.programs.figures.table import cpu_kind, read_figures, what_repeats

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1500)]

EXPERTS = ["reasoning", "agent", "general"]


def test_a_killed_flow_is_resumed_to_its_report(machine: Machine, page: Page) -> None:
    finished = _killed_in_its_last_training(machine)
    machine.call("resume", "first")
    report = machine.report("first")
    assert report["state"] == "completed"
    stages = {stage["name"]: stage for stage in report["stages"]}
    assert list(stages)[-1] == "evaluate"
    for name, before in finished.items():
        assert stages[name]["artifact"] == before["artifact"]
        assert stages[name]["seconds"] == before["seconds"]
    assert machine.attempts(stages["unified-rl"]) == 1, "its job outlived the flow"
    models = ["base", *(m for e in EXPERTS for m in (f"{e}-sft", e)), "unified-sft", "unified"]
    assert set(report["scores"]) == {*models, "unified-nothink"}
    assert all(0 <= score <= 1 for row in report["scores"].values() for score in row.values())
    assert set(report["greedy"]["unified"]) == set(EXPERTS)
    if figures := read_figures().get(cpu_kind()):
        assert what_repeats(report) == figures["cpu-smoke"], "`make figures` writes what moved"
    _check_mlflow(machine, "first", report)
    # What Prefect's page copies is the parameters.
    copied = page.parameters(machine.state("first")["flow_run"])
    assert (copied["recipe"], copied["name"]) == ("cpu-smoke", "first")
    assert copied["overrides"].splitlines() == ["seed=0", *SMOKE]


@pytest.mark.long
def test_a_folder_is_evaluated_by_the_page(
    machine: Machine, page: Page, smoke: dict[str, Any]
) -> None:
    """The stage and what the page shows of it: `test_started_in_browser.py`."""
    trained = {stage["name"]: stage["artifact"] for stage in machine.report("first")["stages"]}
    recipe = smoke | {"evaluate": {"problems": 2, "samples": 1}, "name": "folder"}
    flow_run = _succeeded(
        page, "evaluate", {"recipe": recipe, "models": {"candidate": trained["unified-rl"]}}
    )
    run = machine.run_id("folder")
    check_shown(machine, page, flow_run, run, {"evaluate": r"\bcandidate [01]\.\d\d"})
    report = machine.report(run)
    assert set(report["scores"]) == {"candidate"}
    assert set(report["greedy"]["candidate"]) == set(EXPERTS)


@pytest.mark.long
def test_a_trigger_adds_a_round_to_what_is_cached(
    machine: Machine, page: Page, smoke: dict[str, Any]
) -> None:
    """`test_rounds.py` shows that the next one adds another."""
    recipe = smoke | {"evaluate": {"problems": 2, "samples": 1}, "name": "rounds"}
    flow_run = _succeeded(page, "distill-rounds", {"recipe": recipe, "expert": "reasoning"})
    assert re.search(r"(^|; )reasoning [01]\.\d\d$", page.ended(flow_run, 900)[1])
    check_shown(
        machine, page, flow_run, machine.run_id("rounds"),
        {"reasoning-sft-2": r"^loss \d\.\d+ after \d+ steps$", "evaluate": r"\bbase [01]\.\d\d"},
    )  # fmt: skip
    report = machine.report(machine.run_id("rounds"))
    added = {"reasoning-distill", "reasoning-sft-2", "reasoning-rl-2"}
    assert made_by(report) == added | {"evaluate"}
    on_the_way = {"reasoning-sft", "reasoning-rl", "reasoning-sft-2"}
    assert set(report["scores"]) == {"base", *on_the_way, "reasoning"}
    _check_cached_in_mlflow(machine, report["run"], {"base", "reasoning-sft", "reasoning-rl"})


def _succeeded(page: Page, flow: str, arguments: dict[str, Any]) -> str:
    """Submits the flow and waits for its end; -> the flow run."""
    made = page.submit(flow, arguments)
    assert made.is_success, made.text
    kind, said = page.ended(made.json()["id"], 900)
    assert kind == "COMPLETED", said
    return made.json()["id"]


def _killed_in_its_last_training(machine: Machine) -> dict[str, dict[str, Any]]:
    """Start the run and kill its flow; -> the stages that are done, by name."""
    command = machine.start("run", "cpu-smoke", *settings("first", 0))
    try:
        until(lambda: _trains_last(machine) or command.poll() is not None, 900)
        assert command.poll() is None, machine.said_by("run")
        for process in _flow_processes(machine):
            process.send_signal(signal.SIGKILL)
        interrupted = machine.stage("first", "unified-rl")
        stages = machine.report("first")["stages"]
        command.wait(120)
    finally:
        if command.poll() is None:
            command.kill()
    assert _is_training(interrupted), "the flow died in mid-RL and nobody marked its stage since"
    finished = {stage["name"]: stage for stage in stages if stage["artifact"]}
    assert {"base", "reasoning-rl", "unified-sft"} <= set(finished)
    return finished


def _trains_last(machine: Machine) -> bool:
    return _is_training(machine.stage("first", "unified-rl"))


def _is_training(stage: dict[str, Any]) -> bool:
    return stage.get("state") == "running" and stage["done"] > 0


class Mlflow:
    """The stack's MLflow, asked over REST."""

    def __init__(self, machine: Machine) -> None:
        self.uri = f"http://127.0.0.1:{machine.port('mlflow')}"
        self._headers = machine.basic
        with pytest.MonkeyPatch.context() as patch:  # it reads the home's key here
            patch.setenv("TRIBUTARY_HOME", machine.env["TRIBUTARY_HOME"])
            self.rest = MlflowRest(self.uri)
        self.experiment = self.rest.experiment("tributary")

    def parent(self, run: str) -> str:
        found = self.rest.find_run(
            self.experiment, {"tributary.run": run, "tributary.role": "recipe"}
        )
        assert found, f"MLflow has no run of {run}"
        return found

    def nested(self, parent: str, stage: str) -> dict[str, Any]:
        """Id, status, tags and last metrics of a stage's run."""
        found = self.rest.find_run(
            self.experiment, {"mlflow.parentRunId": parent, "tributary.stage": stage}
        )
        assert found, f"MLflow has no nested run of {stage}"
        run = self.rest.run(found)
        pairs = {k: run["data"].get(k, []) for k in ("tags", "metrics")}
        return {"id": found, "status": run["info"]["status"]} | {
            kind: {pair["key"]: pair["value"] for pair in found} for kind, found in pairs.items()
        }

    def alias(self, model: str, alias: str) -> dict[str, str]:
        """Tags of the version that an alias points at."""
        url = f"{self.uri}/api/2.0/mlflow/registered-models/alias"
        reply = httpx.get(
            url, params={"name": model, "alias": alias}, timeout=10, headers=self._headers
        )
        version = reply.raise_for_status().json()["model_version"]
        return {tag["key"]: tag["value"] for tag in version["tags"]}


def _check_mlflow(machine: Machine, name: str, report: dict[str, Any]) -> None:
    """One parent, a nested run a stage with lineage and curves, models with aliases."""
    mlflow = Mlflow(machine)
    parent = mlflow.parent(machine.run_id(name))
    stages = {stage["name"]: stage for stage in report["stages"]}
    nested = {stage: mlflow.nested(parent, stage) for stage in stages}
    for stage, run in nested.items():
        assert run["status"] == "FINISHED"
        assert run["tags"]["tributary.digest"] == stages[stage]["digest"]
    assert mlflow.rest.run(parent)["info"]["status"] == "FINISHED"

    # A step without one usable group trains nothing; not every stage's steps are such.
    curves = [nested[f"{e}-rl"]["metrics"].keys() for e in EXPERTS]
    assert any(keys >= {"entropy", "grad_norm", "mismatch_mean"} for keys in curves)

    lineage = {"unified-sft": ("data", "unified-distill"), "unified-distill": ("agent", "agent-rl")}
    lineage |= {f"{e}-rl": ("model", f"{e}-sft") for e in EXPERTS}
    for stage, (role, source) in lineage.items():
        assert nested[stage]["tags"][f"tributary.input.{role}"] == stages[source]["digest"]
    for expert in [*EXPERTS, "unified"]:
        assert "outcome_mean" in nested[f"{expert}-rl"]["metrics"]
        made = {alias: stages[f"{expert}-{alias}"]["digest"] for alias in ("sft", "rl")}
        for alias, digest in made.items():
            tags = mlflow.alias(f"cpu-smoke-{expert}", alias)
            assert tags["tributary.digest"] == digest
        best = mlflow.alias(f"cpu-smoke-{expert}", "best")
        assert best["tributary.digest"] in made.values()


def _check_cached_in_mlflow(machine: Machine, run: str, stages: set[str]) -> None:
    """Each cached stage has an entry with its metrics and a link to the run that made it."""
    mlflow = Mlflow(machine)
    maker, parent = (mlflow.parent(each) for each in (machine.run_id("first"), run))
    for stage in stages:
        origin, nested = mlflow.nested(maker, stage)["id"], mlflow.nested(parent, stage)
        assert nested["tags"]["tributary.cached"] == "true"
        assert nested["tags"]["tributary.origin_run"] == origin
        assert origin in nested["tags"]["mlflow.note.content"]
        assert any(key.startswith("total.") for key in nested["metrics"])


def _flow_processes(machine: Machine) -> list[psutil.Process]:
    """The process that the worker started for the flow run of this home."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or [])
        try:
            home = process.environ().get("TRIBUTARY_HOME")
        except psutil.Error:
            continue
        if "prefect" in line and "engine" in line and home == machine.env["TRIBUTARY_HOME"]:
            found.append(process)
    assert found, "no flow process to kill"
    return found
