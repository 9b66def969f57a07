"""What an RL stage remembers: its progress, its totals, a gallery, and how to continue."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from engines.algorithms.parts import Need
from engines.rollout.consumer import StepResult
from engines.rollout.evaluator import Evaluated
from engines.rollout.metrics import (
    Alarms,
    StopRule,
    first_samples,
    mean,
    most_frequent_reason,
    step_metrics,
)
from engines.rollout.records.gallery import Gallery, ShownSteps, first_of
from engines.rollout.records.journals import Notes
from engines.rollout.records.last_steps import LastSteps
from engines.sglang.turn_queue import ServerUse
from engines.types import Sample
from tasks.domain_verdicts import SOLVED, Verdicts, without_scores
from tasks.rl.counts import RlCounts, Sums, warnings_of
from tasks.rl.curve import Curve, ScorePoint, point_metrics, score_points
from tasks.rl.temperature import TemperatureControl
from tasks.stage import Reporter
from tasks.training_record import Series, Updates, thinned

_STATE_FILE = "state.json"
_TOTALS = (
    "generate_seconds",
    "train_seconds",
    "train_cpu_seconds",
    "critic_cpu_seconds",
    "publish_seconds",
    "trainer_idle_seconds",
    "servers_idle_seconds",
    "generated_tokens",
    "unused_tokens",
    "train_tokens",
)
_SHOWN = 4
"""number of held-out problems of a domain whose first rollout is kept for browsing"""
_EVALUATION = "evaluation after step "
"""label of its rollouts, before the step"""
_CURVES = (
    "outcome_mean",
    "reward_mean",
    "entropy",
    "kl_k3",
    "kl_from_start",
    "teacher_kl",
    "grad_norm",
    "clip_fraction",
    "mismatch_mean",
    "response_tokens_mean",
    "truncated_share",
    "zero_variance_share",
)
_IDLE_STEPS = (5, 20, 100)
"""in a row without an update, after each of which it is said"""
NEVER = -1
"""the step of an evaluation that was not made"""


class RlRecord:
    """Follows a run step by step; saved with each checkpoint, restored by a resumed attempt."""

    def __init__(
        self,
        *,
        watch: StopRule,
        gallery: Gallery,
        reporter: Reporter,
        steps: int,
        notes: Notes,
        curves: Collection[str] = (),
    ) -> None:
        """`curves`: metrics that the report draws besides the usual ones."""
        self._watch = watch
        self._notes = notes
        self._shown: list[int] = []
        self._gallery = gallery
        self._last_steps = LastSteps(gallery.chat)
        self._shown_evaluations = ShownSteps()
        self._reporter = reporter
        self._steps = steps
        self._totals: defaultdict[str, float] = defaultdict(float)
        self._alarms = Alarms()
        self._sums = {
            name: Sums()
            for name in (
                "outcome_mean", "mismatch_mean", "mismatch_max", "mfu", "mfu_stated", "teacher_kl",
            )
        }  # fmt: skip
        self._unsaved: defaultdict[int, dict[str, float]] = defaultdict(dict)
        self._held_out: defaultdict[str, list[ScorePoint]] = defaultdict(list)
        self._is_cut_short = False
        """whether the newest scores are of a part of their problems"""
        self.series = Series([*_CURVES, *curves])
        self.counts = RlCounts()
        self.updates = Updates()
        self.verdicts = Verdicts()
        self.temperatures: TemperatureControl | None = None
        """where the stage changes its temperature"""
        self.step = 0
        self.version = 0
        self.solved = False

    def observe(self, result: StepResult, servers: ServerUse, devices: Mapping[str, float]) -> None:
        """Take one step in and report it, with what is to be said of its devices. Raises
        TrainingStopped when a bound is broken."""
        metrics = (
            step_metrics(result)
            | dict(devices)
            | {
                "servers_idle_seconds": servers.idle_seconds,
                "turns_in_flight_mean": servers.mean_turns,
                "turns_in_flight_max": float(servers.most_turns),
            }
        )
        self.step, self.version = result.step, result.version
        for name in _TOTALS:
            self._totals[name] += metrics.get(name, 0.0)
        for name in metrics:
            if name.startswith("teacher_kl_"):  # of a domain
                self._sums.setdefault(name, Sums())
            if name in self._sums:
                self._sums[name].add(metrics[name])
        self.series.observe(result.step, metrics)
        self.counts.observe(result)
        self.verdicts.observe(result.sampled.groups)
        is_warm_up = bool(result.critic) and not result.trained
        if self.temperatures is not None and not is_warm_up:
            self.temperatures.observe(metrics, is_updated=bool(result.trained))
        is_solved = metrics.get("outcome_mean", 0.0) >= SOLVED
        if result.trained or not (result.critic or is_solved):
            self.updates.observe(result.trained)
            self._warn_of_idleness()
        shown = result.shown_groups
        self._last_steps.add(result.step, shown, self._gallery, result.logprobs)
        self._report(result.step, metrics)
        self._reporter.progress(
            result.step,
            self._steps,
            f"outcome {metrics.get('outcome_mean', self._last_outcome):.3f}, "
            f"{len(result.groups)} of {result.wanted} groups",
        )
        for alarm in self._alarms.observe(result.step, metrics):
            self._reporter.warn(alarm)
        reason = most_frequent_reason(first_samples(result.sampled.groups))
        if reason:
            self._reporter.warn(f"step {result.step}: samples failed: {reason}")
        for fault in filter(None, (result.sampled.filter_fault, result.buffer_fault)):
            self._reporter.warn(f"step {result.step}: {fault}")
        self.solved = self._watch.observe(result.step, metrics, reason)
        self.verdicts.require_some(result.step, self._watch.max_failed_share)

    def _warn_of_idleness(self) -> None:
        """Say early that nothing is learned: a stage may have days to go."""
        if self.updates.idle in _IDLE_STEPS:
            cause = self.verdicts.nothing_learned(self.counts.filtered)
            self._reporter.warn(
                f"step {self.step}: none of the last {self.updates.idle} steps made an update, as"
                f" {cause}"
            )

    def conclude(self, needs: Collection[Need], domains: Collection[str] = ()) -> None:
        """At the end of the stage: keep what a person must know of its result; `needs` are the
        advantage's. Raises TrainingStopped where nothing was trained."""
        said = warnings_of(
            self.updates, self.verdicts, self.counts.filtered, self.series, needs, domains
        )
        for warning in said:
            self._reporter.keep_warning(warning)

    def conclude_held_out(self) -> None:
        """After the last evaluation: keep what a person must know of the scores."""
        for name, points in self._held_out.items():
            if points and all(point.outcome is None for point in points):
                self._reporter.keep_warning(without_scores(name, len(points)))

    def evaluated(self, evaluated: Evaluated, held_seconds: float) -> None:
        """Take scores on held-out problems in and report them; the publish waited so long."""
        points = score_points(evaluated)
        self._is_cut_short = bool(evaluated.failure)
        shown: list[Sample] = []
        for domain, groups in evaluated.groups.items():
            self._held_out[domain] = thinned([*self._held_out[domain], points[domain]])
            shown += first_of([s for group in groups[:_SHOWN] for s in group[0].samples])
        if self._shown_evaluations.take(evaluated.step, sum(len(s.tokens) for s in shown)):
            self._gallery.add(f"{_EVALUATION}{evaluated.step}", shown)
        times = {"eval_seconds": evaluated.seconds, "eval_held_seconds": held_seconds}
        self._report(evaluated.step, point_metrics(points) | times)

    @property
    def last_evaluated(self) -> int:
        """The step of the newest scores on held-out problems."""
        return max((p[-1].step for p in self._held_out.values()), default=NEVER)

    @property
    def held_out_score(self) -> tuple[int, float] | None:
        """The step of the newest scores on held-out problems, and their mean over domains; None
        before the first, where a domain has no verdict, and for scores of a part of the problems,
        of which the short ones are finished first."""
        newest = [points[-1] for points in self._held_out.values() if points]
        outcomes = [point.outcome for point in newest if point.outcome is not None]
        if not newest or len(outcomes) < len(newest) or self._is_cut_short:
            return None
        return newest[0].step, mean(outcomes)

    @property
    def curve(self) -> Curve:
        """Return the curve of the steps so far; in a long stage of some of them."""
        points = self.series.points
        return Curve(
            training=dict(points("outcome_mean")), held_out=self._held_out,
            kl_from_start=dict(points("kl_from_start")),
        )  # fmt: skip

    def in_phase(self, phase: int, why: str) -> None:
        """Report the phase of the next steps. Where one begins, `why` says it: its problems are
        others, so that no bound and no search compares outcomes with those before."""
        self.note({"phase": float(phase)}, why)
        if why:
            self.solved = False
            self._watch.outcomes.clear()
            if self.temperatures is not None:
                self.temperatures.forget()

    def note(self, values: dict[str, float], said: str = "") -> None:
        """Report more of the last step, and what happened in words."""
        self._report(self.step, values)
        self.series.observe(self.step, values)
        if said:
            print(f"after step {self.step}: {said}", flush=True)

    def _report(self, step: int, metrics: dict[str, float]) -> None:
        self._unsaved[step] |= metrics
        self._reporter.metrics(step, metrics)

    def checkpointed(self, seconds: float) -> None:
        """Take in how long checkpoints stopped the run."""
        self._totals["checkpoint_seconds"] += seconds

    def summary(self) -> dict[str, float]:
        """The artifact's metrics. Times in seconds, summed over all attempts."""
        totals, sums = self._totals, self._sums
        return {
            "steps": float(self.step),
            "version": float(self.version),
            "solved": float(self.solved),
            **sums["outcome_mean"].ends("outcome"),
            "mismatch_mean": sums["mismatch_mean"].mean,
            "mismatch_max": sums["mismatch_max"].most,
            "mfu": sums["mfu"].mean,
            "generate_tokens_per_s": _rate(totals, "generated_tokens", "generate_seconds"),
            "train_tokens_per_s": _rate(totals, "train_tokens", "train_seconds"),
            "checkpoint_seconds": totals["checkpoint_seconds"],
            **{name: totals[name] for name in _TOTALS},
            **self._stated(),
            **self._teachers(),
            **self._scores(),
        }

    def _teachers(self) -> dict[str, float]:
        """Return how far they are at either end, all and each domain's, where there are any."""
        ends = (s.ends(name) for name, s in self._sums.items() if name.startswith("teacher_kl"))
        return {name: value for each in ends for name, value in each.items()}

    def _stated(self) -> dict[str, float]:
        """Return the share of the data sheet's peak, where the device has one."""
        stated = self._sums["mfu_stated"]
        return {"mfu_stated": stated.mean} if stated.count else {}

    def _scores(self) -> dict[str, float]:
        """On held-out problems at either end, mean over domains, where any were scored."""
        curves = [list(self.curve.outcomes(domain).values()) for domain in self._held_out]
        if not curves or not all(curves):
            return {}
        return {
            "eval_outcome_first": mean(outcomes[0] for outcomes in curves),
            "eval_outcome_last": mean(outcomes[-1] for outcomes in curves),
        }

    @property
    def score(self) -> float:
        """Return what makes one checkpoint better than another: the last mean outcome."""
        return self._last_outcome

    @property
    def _last_outcome(self) -> float:
        seen = self._sums["outcome_mean"].last
        return seen[-1] if seen else 0.0

    def write_rollouts(self, folder: Path) -> None:
        """Write samples of steps, and all rollouts of the last ones, as `rollouts.parquet`."""
        # of one number, the newest attempt's is last
        earlier = (self._notes.notes("shown", step, step)[-1] for step in self._shown)
        rows = chain(earlier, [self._gallery.encoded()], self._last_steps.written())
        statement = self._last_steps.statement
        Gallery(self._gallery.chat).write(folder, rows, statement, self._is_shown)

    def _is_shown(self, label: str) -> bool:
        """Return whether rollouts of this label, which were when they were noted, still are."""
        step = int(label.rpartition(" ")[2])
        if label.startswith(_EVALUATION):
            return step in self._shown_evaluations.tokens
        return self._last_steps.has(step)

    def save(self, folder: Path) -> Callable[[], None]:
        """Write what `restore` needs into a checkpoint's folder. -> what writes the last steps'
        rollouts there and notes those shown since the checkpoint before, in a thread while the next
        steps add theirs."""
        if len(self._gallery):
            self._shown.append(self.step)
        state = {
            "step": self.step,
            "version": self.version,
            "shown": self._shown,
            "shown_steps": self._last_steps.earlier.state(),
            "shown_evaluations": self._shown_evaluations.state(),
            "history": self._watch.history(),
            "totals": self._totals,
            "sums": {name: asdict(sums) for name, sums in self._sums.items()},
            "metrics": self._unsaved,
            "series": self.series.state(),
            "counts": self.counts.state(),
            "updates": self.updates.state(),
            "verdicts": self.verdicts.state(),
            "is_cut_short": self._is_cut_short,
            "held_out": {
                domain: [point.model_dump() for point in points]
                for domain, points in self._held_out.items()
            },
        }
        (folder / _STATE_FILE).write_text(json.dumps(state))
        if self.temperatures is not None:
            self.temperatures.save(folder)
        self._unsaved = defaultdict(dict)
        last = partial(LastSteps.save, self._last_steps.snapshot(), folder)
        return partial(self._write_shown, self.step, self._gallery.take(), last)

    def _write_shown(self, step: int, rows: Gallery, last: Callable[[], None]) -> None:
        if len(rows):
            self._notes.note("shown", step, rows.encoded())
        last()

    def restore(self, folder: Path) -> None:
        """Take a checkpoint's record up, and report the steps since the one before it again:
        points still on their way when the attempt was killed would be missing otherwise, and the
        tracker drops those it has."""
        state: dict[str, Any] = json.loads((folder / _STATE_FILE).read_text())
        self.step, self.version = state["step"], state["version"]
        if self.temperatures is not None:
            self.temperatures.restore(folder)
        self._watch.restore(state["history"])
        self._totals.update(state["totals"])
        self._sums = {name: Sums(**sums) for name, sums in state["sums"].items()}
        self._shown = state["shown"]
        self._last_steps.restore(folder)
        self._last_steps.earlier = ShownSteps.of_state(state["shown_steps"])
        self._shown_evaluations = ShownSteps.of_state(state["shown_evaluations"])
        self.series.restore(state["series"])
        self.counts.restore(state["counts"])
        self.updates.restore(state["updates"])
        self.verdicts.restore(state["verdicts"])
        self._is_cut_short = state["is_cut_short"]
        for domain, points in state["held_out"].items():
            self._held_out[domain] = [ScorePoint.model_validate(point) for point in points]
        for step, values in state["metrics"].items():
            self._reporter.metrics(int(step), values)


def _rate(totals: dict[str, float], tokens: str, seconds: str) -> float:
    return totals[tokens] / totals[seconds] if totals[seconds] else 0.0
