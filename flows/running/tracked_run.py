"""A run's view of MLflow: one parent run, one nested run a stage, registered expert models."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Generator, Mapping, Sequence

import stamina

from flows.plan import PlannedStage
from flows.post_train import Round
from flows.recipe import Recipe
from flows.reports.outcome import Best
from flows.reports.report import Scores, domains_of, mean
from flows.running.mlflow_notes import Source, datasets_of, run_note, stage_note
from infra.errors import TributaryError
from infra.shown_text import markdown_link
from infra.store.artifacts import ArtifactRecord
from infra.tracking.params import flat_params
from infra.tracking.rest import BUSY
from infra.tracking.spool import DeferredRun, RunRef
from infra.tracking.tracker import Tracker
from tasks.durable.attempts import StageLetGo, StageWork

_log = logging.getLogger(__name__)

COMPARED = ("outcome_mean",)
"""the curve that tells how experts learn, of every stage that trains a policy; a second one would
share its axis, and each stage's colour"""
LEARNED = ("loss",)
"""the curve of stages that learn from data, for runs without a policy"""
_MOST_COLUMNS = 12
BUSY_SECONDS = 60.0
BEST = "best"
"""alias of a model's best version"""
BY_ROUNDS = {"tributary.best_by": "distill-rounds"}
"""tag of a model whose best version a series of rounds has chosen"""


class TrackedRun:
    """Does nothing when the run has no tracker. MLflow that is down or refuses costs its entries
    and a warning, never a stage or a run."""

    def __init__(
        self,
        tracker: Tracker | None,
        recipe: Recipe,
        run: str,
        flow: str,
        pages: Mapping[str, str] | None = None,
    ) -> None:
        self.tracker, self._recipe, self._run, self.parent = tracker, recipe, run, ""
        self._pages = dict(pages or {})
        """where else a person reads of the run, by title"""
        self._runs: dict[str, str] = {}
        self._curves: dict[str, str] = {}
        """runs with the curves of stages that train a policy on its own samples: a cached stage's
        are in the run that made it"""
        self._losses: dict[str, str] = {}
        """the same of stages that learn from data"""
        if tracker is not None:
            params = {
                "recipe": recipe.name,
                "seed": recipe.seed,
                "experts": ",".join(recipe.experts),
            }
            with _tolerated(f"run {run}"):
                # Without its parent nothing of the run is tracked: a busy server is asked again.
                for attempt in stamina.retry_context(BUSY, attempts=None, timeout=BUSY_SECONDS):
                    with attempt:
                        tags = {"tributary.flow": flow}
                        self.parent = tracker.parent_run(run, run, params, tags)
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
        params = flat_params(planned.spec.model_dump(mode="json"))
        with _tolerated(f"stage {planned.name}"):
            run = self.tracker.stage_run(self.parent, planned.name, work.digest, tags, params)
            self._follow(planned, run)
            self.tracker.describe(run, self._described(planned))
            self.tracker.datasets(run, list(datasets_of(planned)))
            return run
        with _tolerated(f"stage {planned.name}"):
            return self.tracker.later_stage_run(
                self.parent, planned.name, work.digest, tags, params
            )
        return ""

    def made(self, planned: PlannedStage, record: ArtifactRecord) -> None:
        """A stage of this run that is done, whether or not something followed it."""
        if self.tracker is not None and record.mlflow_run_id:
            with _tolerated(f"stage {planned.name}"):
                self._follow(planned, record.mlflow_run_id)
                self.tracker.finish(record.mlflow_run_id, "FINISHED")
                self.tracker.describe(record.mlflow_run_id, self._described(planned, record))

    def cached(self, planned: PlannedStage, record: ArtifactRecord) -> None:
        if self.tracker is None:
            return
        with _tolerated(f"stage {planned.name}"):
            params = flat_params(planned.spec.model_dump(mode="json"))
            run = self.tracker.cached_stage(self.parent, planned.name, record, params)
            origin = record.mlflow_run_id
            is_here = bool(origin) and self.tracker.knows(origin)
            self._follow(planned, run, curves=origin if is_here else run)
            page = self.tracker.url(origin) if is_here else ""
            self.tracker.describe(run, self._described(planned, record, page))

    def _described(
        self, planned: PlannedStage, record: ArtifactRecord | None = None, origin: str = ""
    ) -> str:
        sources = {role: Source(s, self.stage_url(s)) for role, s in planned.inputs.items()}
        return stage_note(self._run, planned, sources, self._pages, record, origin)

    def _follow(self, planned: PlannedStage, run: str, curves: str = "") -> None:
        self._runs[planned.name] = run
        if planned.spec.policy is not None:
            self._curves[planned.name] = curves or run
        elif planned.spec.trained_roles:
            self._losses[planned.name] = curves or run

    def register(
        self,
        plan: Sequence[PlannedStage],
        artifacts: Mapping[str, ArtifactRecord],
        scores: Mapping[str, Mapping[str, float]],
        promoted: str = "",
    ) -> None:
        """Register the last version of each model by each kind of stage, under the kind's name as
        alias; @best is the best scored one of all versions.

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
            elif scores and not self._is_promoted(name):
                own = [s for s in plan if s.model == model and s.name in artifacts]
                scored = [stage for stage in own if stage.scored_as in scores]
                best = max(
                    scored or made.values(),
                    key=lambda stage: self._own_score(scores.get(stage.scored_as, {}), model),
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
        """Return whether a series of rounds has chosen this model's @best."""
        if self.tracker is None:
            return False
        with _tolerated(f"model {name}@{BEST}"):
            return BY_ROUNDS.items() <= self.tracker.model_tags(name).items()
        return True  # unknown: leave it as it is

    def links(self) -> dict[str, str]:
        """The run, the experts' curves in one picture, and all runs with their scores."""
        if self.tracker is None:
            return {}
        curves = list(dict.fromkeys((self._curves or self._losses).values()))
        shown = COMPARED if self._curves else LEARNED
        with _tolerated("links"):
            everything = self.tracker.url()
            return {
                "MLflow run": self.tracker.url(self.parent),
                "MLflow comparison": self.tracker.curves_url(curves, shown)
                if curves
                else everything,
                "MLflow scores": everything,
            }
        return {}

    def stage_url(self, stage: str) -> str:
        """Page of a stage's MLflow run; empty when it has none."""
        if self.tracker is None or stage not in self._runs:
            return ""
        with _tolerated(f"link of stage {stage}"):
            return self.tracker.url(self._runs[stage])
        return ""

    def scores(self, plan: Sequence[PlannedStage], scores: Scores) -> None:
        """The scores as metrics of the parent run, each model's own one of the stage that made it
        too."""
        if self.tracker is None:
            return
        versions = [p for p in plan if p.scored_as in scores]
        own = {p.scored_as: self._own_score(scores[p.scored_as], p.model) for p in versions}
        flat = {f"score/{m}/{d}": v for m, row in scores.items() for d, v in row.items()}
        self.tracker.log(self.parent, 0, flat | {f"score/{m}": v for m, v in own.items()})
        for planned in versions:
            if run := self._runs.get(planned.name):
                self.tracker.log(run, 0, {"score": own[planned.scored_as]})

    def _own_score(self, row: Mapping[str, float], model: str) -> float:
        """Return an expert's score in its own domain; the unified model's mean over domains."""
        expert = self._recipe.experts.get(model)
        own = "" if expert is None or expert.domain is None else expert.domain.name
        return row[own] if own in row else mean(row)

    def task_scores(self, plan: Sequence[PlannedStage], tasks: Scores) -> None:
        """Log the scores of lm-eval, as metrics of the parent run and of the stage that made each
        model."""
        if self.tracker is None:
            return
        stages = {p.scored_as: p.name for p in plan if p.scored_as}
        for model, row in tasks.items():
            named = {task.replace(" ", "/"): value for task, value in row.items()}
            self.tracker.log(self.parent, 0, {f"task/{model}/{t}": v for t, v in named.items()})
            if run := self._runs.get(stages.get(model, "")):
                self.tracker.log(run, 0, {f"task/{t}": v for t, v in named.items()})

    def say_best(
        self,
        plan: Sequence[PlannedStage],
        scores: Scores,
        tasks: Scores,
        best: Sequence[Best],
    ) -> None:
        """Say on the run's page and on the experiment's who has the highest score in each domain,
        and all scores; of a run without scores in domains, those of lm-eval's tasks."""
        if self.tracker is None or not (scores or tasks):
            return
        shown = scores or tasks
        models = [p.model for p in plan if p.scored_as == p.model and p.model in shown]
        columns = [f"score/{model}" for model in models]
        if not scores:
            named = [
                (model, task.replace(" ", "/")) for task in domains_of(tasks) for model in tasks
            ]
            columns = [f"task/{model}/{task}" for model, task in named]
        with _tolerated("scores"):
            pages = self.links()
            self.tracker.describe(self.parent, run_note("", shown, pages | self._pages, best))
            last = run_note(markdown_link(self._run, pages["MLflow run"]), shown, pages, best)
            wanted = [f"metrics.{name}" for name in columns[:_MOST_COLUMNS]]
            self.tracker.show_columns([*wanted, "params.seed"], last)

    def say_result(self, said: str) -> None:
        """First in the run's name: every list of runs shows its beginning, whatever its columns."""
        if self.tracker is not None:
            with _tolerated("the result"):
                self.tracker.rename(self.parent, f"{said} ({self._run})")

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
            if refused := self.tracker.refused():
                _log.warning("%s", refused)


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
