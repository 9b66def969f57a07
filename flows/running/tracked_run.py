"""A run's view of MLflow: one parent run, one nested run a stage, registered expert models."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Generator, Mapping, Sequence

from flows.plan import PlannedStage
from flows.recipe import Recipe
from flows.rounds.promotion import Round
from infra.errors import TributaryError
from infra.store.artifacts import ArtifactRecord
from infra.tracking.spool import DeferredRun, RunRef
from infra.tracking.tracker import Tracker
from tasks.durable.attempts import StageLetGo, StageWork

_log = logging.getLogger(__name__)

BEST = "best"
"""alias of a model's best version"""
BY_ROUNDS = {"tributary.best_by": "distill-rounds"}
"""tag of a model whose best version a series of rounds has chosen"""


class TrackedRun:
    """Does nothing when the run has no tracker. MLflow that is down or refuses costs its entries
    and a warning, never a stage or a run."""

    def __init__(self, tracker: Tracker | None, recipe: Recipe, run: str, flow: str) -> None:
        self.tracker, self._recipe, self.parent = tracker, recipe, ""
        self._runs: dict[str, str] = {}
        self._policies: list[str] = []
        """stages that train a policy on its own samples: their curves are compared"""
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
            if isinstance(run, DeferredRun):
                yield dataclasses.replace(work, mlflow_deferred=run)
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
            self._note(planned, run)
            return run
        with _tolerated(f"stage {planned.name}"):
            return self.tracker.later_stage_run(self.parent, planned.name, work.digest, tags)
        return ""

    def made(self, planned: PlannedStage, record: ArtifactRecord) -> None:
        """A stage of this run that finished while nothing followed it."""
        if self.tracker is not None and record.mlflow_run_id:
            self._note(planned, record.mlflow_run_id)
            self.tracker.finish(record.mlflow_run_id, "FINISHED")

    def cached(self, planned: PlannedStage, record: ArtifactRecord) -> None:
        if self.tracker is None:
            return
        with _tolerated(f"stage {planned.name}"):
            self._note(planned, self.tracker.cached_stage(self.parent, planned.name, record))

    def _note(self, planned: PlannedStage, run: str) -> None:
        self._runs[planned.name] = run
        if planned.spec.policy is not None:
            self._policies.append(planned.name)

    def register(
        self,
        plan: Sequence[PlannedStage],
        artifacts: Mapping[str, ArtifactRecord],
        scores: Mapping[str, Mapping[str, float]],
        promoted: str = "",
    ) -> None:
        """Register the last version of each model by each kind of stage, under the kind's name as
        alias; @best is the best scored one.

        In a series of rounds it is the promoted one, made by the stage `promoted`; other runs then
        leave that model's @best alone.
        """
        for model, versions in kinds_of(plan).items():
            made = {kind: stage for kind, stage in versions.items() if stage.name in artifacts}
            if not made:
                continue
            name = f"{self._recipe.name}-{model}"
            for alias, stage in made.items():
                self._register(name, stage.name, artifacts[stage.name], alias)
            if promoted:
                self._register(name, promoted, artifacts[promoted], BEST, BY_ROUNDS)
            elif not self._is_promoted(name):
                best = max(
                    made.values(), key=lambda s: _own_score(scores.get(s.scored_as, {}), model)
                )
                self._register(name, best.name, artifacts[best.name], BEST)

    def _register(
        self,
        name: str,
        stage: str,
        record: ArtifactRecord,
        alias: str,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        if self.tracker is None or stage not in self._runs:
            return
        # Under this run's own stage: a cached artifact's origin may be on another server.
        here = record.model_copy(update={"mlflow_run_id": self._runs[stage]})
        with _tolerated(f"model {name}@{alias}"):
            self.tracker.register_model(name, here, alias, tags or {})

    def _is_promoted(self, name: str) -> bool:
        """Whether a series of rounds has chosen this model's @best."""
        if self.tracker is None:
            return False
        with _tolerated(f"model {name}@{BEST}"):
            return BY_ROUNDS.items() <= self.tracker.model_tags(name).items()
        return True  # unknown: leave it as it is

    def links(self) -> dict[str, str]:
        if self.tracker is None:
            return {}
        compared = [self._runs[stage] for stage in self._policies if stage in self._runs]
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

    def rounds(self, rounds: Sequence[Round]) -> None:
        """The curve of a series, as metrics of the parent run with the round as step."""
        if self.tracker is None:
            return
        best = 0.0
        for found in rounds:
            best = found.score if found.promoted else best
            points = {"round/outcome": found.score, "round/best": best, "round/gain": found.gain}
            self.tracker.log(self.parent, found.number, points)

    def finish(self, status: str) -> None:
        if self.tracker is not None:
            self.tracker.finish(self.parent, status)
            self.tracker.flush()


def kinds_of(plan: Sequence[PlannedStage]) -> dict[str, dict[str, PlannedStage]]:
    """The last stage of each kind that makes a version of a model, by model and kind.

    Example: {"agent": {"sft": ..."agent-sft", "rl": ..."agent-rl-2"}}
    """
    found: dict[str, dict[str, PlannedStage]] = {}
    for stage in plan:
        if stage.model:
            found.setdefault(stage.model, {})[stage.kind] = stage
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
