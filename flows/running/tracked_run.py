"""A run's view of MLflow: one parent run, one nested run a stage, registered expert models."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import re
from collections.abc import Collection, Generator, Mapping

from flows.plan import PlannedStage
from flows.recipe import Recipe
from infra.errors import TributaryError
from infra.store.artifacts import ArtifactRecord
from infra.tracking.spool import LaterRun, RunRef
from infra.tracking.tracker import Tracker
from tasks.durable.attempts import StageLetGo, StageWork

_log = logging.getLogger(__name__)


class Tracked:
    """Does nothing when the run has no tracker. MLflow that is down or refuses costs its entries
    and a warning, never a stage or a run."""

    def __init__(self, tracker: Tracker | None, recipe: Recipe, run: str, flow: str) -> None:
        self.tracker, self._recipe, self.parent = tracker, recipe, ""
        self._runs: dict[str, str] = {}
        if tracker is not None:
            params = {
                "recipe": recipe.name,
                "seed": recipe.seed,
                "experts": ",".join(recipe.experts),
            }
            with _tolerated(f"run {run}"):
                self.parent = tracker.parent_run(run, run, params, {"tributary.flow": flow})
        if not self.parent:
            self.tracker = None  # nothing could be nested below it

    @contextlib.contextmanager
    def stage(self, planned: PlannedStage, work: StageWork) -> Generator[StageWork]:
        """The stage's work with its MLflow run, which ends as the stage ends."""
        run = self._begin(planned, work)
        if self.tracker is None or not run:
            yield work
            return
        try:
            if isinstance(run, LaterRun):
                yield dataclasses.replace(work, mlflow_later=run)
            else:
                yield dataclasses.replace(work, mlflow_run=run)
        except StageLetGo:
            raise  # its job goes on, and so its run
        except BaseException:
            self.tracker.finish(run, "FAILED")
            raise
        self.tracker.finish(run, "FINISHED")

    def _begin(self, planned: PlannedStage, work: StageWork) -> RunRef:
        """The stage's own MLflow run, be it later; empty where there is none to be had."""
        if self.tracker is None:
            return ""
        tags = {"tributary.kind": planned.kind, "tributary.expert": planned.expert}
        tags |= {f"tributary.input.{role}": r.digest for role, r in work.inputs.items()}
        with _tolerated(f"stage {planned.name}"):
            run = self.tracker.stage_run(self.parent, planned.name, work.digest, tags)
            self._runs[planned.name] = run
            return run
        with _tolerated(f"stage {planned.name}"):
            return self.tracker.later_stage_run(self.parent, planned.name, work.digest, tags)
        return ""

    def made(self, planned: PlannedStage, record: ArtifactRecord) -> None:
        """A stage of this run that finished while nothing followed it."""
        if self.tracker is not None and record.mlflow_run_id:
            self._runs[planned.name] = record.mlflow_run_id
            self.tracker.finish(record.mlflow_run_id, "FINISHED")

    def cached(self, planned: PlannedStage, record: ArtifactRecord) -> None:
        if self.tracker is None:
            return
        with _tolerated(f"stage {planned.name}"):
            run = self.tracker.cached_stage(self.parent, planned.name, record)
            self._runs[planned.name] = run

    def register(
        self,
        artifacts: Mapping[str, ArtifactRecord],
        scores: Mapping[str, Mapping[str, float]],
    ) -> None:
        """Register each expert's and the unified model's stages; @best is the best scored one."""
        for model in [*self._recipe.experts, "unified"]:
            made = trained(model, artifacts)
            if not made:
                continue
            # what the scores call them
            names = {"sft": f"{model}-sft", "opd": f"{model}-opd", "rl": model}
            best = max(made, key=lambda a: _own_score(scores.get(names[a], {}), model))
            for alias, stage in [*made.items(), ("best", made[best])]:
                self._register(f"{self._recipe.name}-{model}", stage, artifacts[stage], alias)

    def _register(self, name: str, stage: str, record: ArtifactRecord, alias: str) -> None:
        if self.tracker is None or stage not in self._runs:
            return
        # Under this run's own stage: a cached artifact's origin may be on another server.
        here = record.model_copy(update={"mlflow_run_id": self._runs[stage]})
        with _tolerated(f"model {name}@{alias}"):
            self.tracker.register_model(name, here, alias)

    def links(self) -> dict[str, str]:
        if self.tracker is None:
            return {}
        compared = [run for stage, run in self._runs.items() if "-rl" in stage or "-opd" in stage]
        with _tolerated("links"):
            everything = self.tracker.url()
            return {
                "MLflow run": self.tracker.url(self.parent),
                "MLflow comparison": self.tracker.compare_url(compared) if compared else everything,
            }
        return {}

    def stage_url(self, stage: str) -> str:
        """Page of a stage's MLflow run; empty when it has none."""
        if self.tracker is None or stage not in self._runs:
            return ""
        with _tolerated(f"link of stage {stage}"):
            return self.tracker.url(self._runs[stage])
        return ""

    def scores(self, scores: Mapping[str, Mapping[str, float]]) -> None:
        """The scores as metrics of the parent run, so that recipes compare in one table."""
        if self.tracker is not None:
            flat = {f"score/{m}/{d}": v for m, row in scores.items() for d, v in row.items()}
            self.tracker.log(self.parent, 0, flat)

    def finish(self, status: str) -> None:
        if self.tracker is not None:
            self.tracker.finish(self.parent, status)
            self.tracker.flush()


def trained(model: str, stages: Collection[str]) -> dict[str, str]:
    """The stages of a model by alias: its SFT, its distillation on-policy, RL of its last round.

    Example: {"sft": "agent-sft", "rl": "agent-rl-r2"}
    """
    rounds = [s for s in stages if re.fullmatch(rf"{model}-rl(-r\d+)?", s)]
    found = {kind: f"{model}-{kind}" for kind in ("sft", "opd") if f"{model}-{kind}" in stages}
    if rounds:
        found["rl"] = max(rounds, key=lambda s: int(s.rpartition("-r")[2]) if "-rl-r" in s else 0)
    return found


@contextlib.contextmanager
def _tolerated(what: str) -> Generator[None]:
    """What MLflow will not take is left out, with a warning."""
    try:
        yield
    except TributaryError as error:
        _log.warning("%s is not in MLflow: %s", what, error)


def _own_score(row: Mapping[str, float], expert: str) -> float:
    """An expert's score in its own domain; the unified model's mean over domains."""
    if expert in row:
        return row[expert]
    return sum(row.values()) / len(row) if row else 0.0
