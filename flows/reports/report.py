"""A run's report: the table of scores by model and domain, its stages and their times."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pydantic import Field

from curricula.built_in_curricula import BUILT_IN, FLAWS
from flows.plan import BASE, EVALUATE, LM_EVAL, PlannedStage, first_version, versions_of
from flows.post_train import UNIFIED, Round, rounds_of
from flows.recipe import Recipe
from flows.reports.charts import PathologyChange, pathology_changes
from flows.reports.paired_tests import paired_over_domains, problem_outcomes, problem_samples
from flows.reports.rendering import p_text
from flows.running.records import RunRecord, StageRecord
from infra.config import Found
from infra.errors import StorageError
from infra.store.artifacts import ArtifactStore
from infra.store.manifest import StageWarning
from tasks.admit.spec import ADMISSION_FILE, REFUSED_FILE
from tasks.evaluate.score_statistics import Scaling, SettingScores, judged_in_both
from tasks.evaluate.score_statistics import mean as mean_of
from tasks.lm_eval.spec import TASK_SCORES_FILE
from tasks.rl.curve import CURVE_FILE, Curve

Scores = dict[str, dict[str, float]]
MEAN = "mean"
"""the column of the mean over domains"""
NO_VERDICT = "no verdict"
"""in place of a score, where every verdict failed"""
Intervals = dict[str, dict[str, tuple[float, float]]]


class ReportStage(Found):
    name: str
    kind: str
    digest: str
    cached: bool
    seconds: float
    artifact: str


class Gain(Found):
    """What training changed in the mean outcome, with its 95% interval; 0 to 1, not points."""

    domain: str
    """`mean` for a model that is judged by all of several domains"""
    since: str
    """the model that it is compared with: the first version, or the base of an only one"""
    before: float
    after: float
    mean: float
    low: float
    high: float
    p: float = 1.0
    """two-sided, of the same test as everywhere (`flows.reports.paired_tests`)"""
    test: str = ""
    problems: int = 0
    samples: int = 0
    """of each problem, by the first version"""
    unsolved: int = 0
    """problems where none of those had an outcome above 0"""
    newly_solved: float | None = None
    """mean outcome of the last version on these; None: there are none"""
    teaches: bool = True
    """whether the unified model, if there is one, learns from it"""
    by: list[str] = Field(default_factory=list[str])
    """kinds of the stages that trained it since, e.g. ["rl"]"""


class Admission(Found):
    """What an `admit` stage let through, and what it refused."""

    counts: dict[str, dict[str, int]]
    """by `DOMAIN, SPLIT`: `tried`, `admitted`, and the refused by their first cause"""
    refused: list[dict[str, Any]]
    """each with its `domain`, `split`, `id`, `cause` and `reasons`"""


class Report(Found):
    """The shape that `tributary report --json` keeps."""

    run: str
    state: str
    seconds: float
    stages: list[ReportStage]
    scores: Scores
    """model -> domain -> mean outcome at temperature 1"""
    greedy: Scores
    no_verdict: dict[str, dict[str, str]] = Field(default_factory=dict[str, dict[str, str]])
    """model -> domain -> why no rollout at temperature 1 got a verdict: it has no score there"""
    best_of: dict[str, Scores] = Field(default_factory=dict[str, Scores])
    """by k: expected best of k samples at temperature 1; pass@k where outcomes are 0 or 1"""
    intervals: dict[str, Intervals] = Field(default_factory=dict[str, Intervals])
    """95% intervals of `scores`, `greedy` and each `best_of_K`, over problems"""
    scaling: Scaling = Scaling()
    """what more samples, and more turns, add to a score"""
    sampled: dict[str, SettingScores] = Field(default_factory=dict[str, SettingScores])
    """by setting of `evaluate.sampling`, e.g. `t0.6-p0.95`"""
    tasks: Scores = Field(default_factory=dict[str, dict[str, float]])
    """model -> task and metric of lm-eval -> its value, e.g. `arc_easy acc`"""
    gains: dict[str, Gain] = Field(default_factory=dict[str, Gain])
    """by model: its last version against its first, on the same problems: an expert's are those of
    its domain, the unified model's those of all"""
    versions: dict[str, list[str]] = Field(default_factory=dict[str, list[str]])
    """by model: what scores call its versions, in the order of its path"""
    curves: dict[str, Curve] = Field(default_factory=dict[str, Curve])
    """by finished stage whose policy learned from its own samples"""
    warnings: dict[str, list[StageWarning]] = Field(default_factory=dict[str, list[StageWarning]])
    """by finished stage that found something wrong with its result"""
    admissions: dict[str, Admission] = Field(default_factory=dict[str, Admission])
    """by finished stage of kind `admit`"""
    pathologies: list[PathologyChange] = Field(default_factory=list[PathologyChange])
    """how often each model's answers were broken, before and after"""
    rounds: list[Round] = Field(default_factory=list[Round])
    """of a run of `distill-rounds`: how each round was judged"""


def build_report(record: RunRecord, plan: Sequence[PlannedStage]) -> Report:
    """The report of what the run has done so far."""
    stages = record.stages()
    known = [stages[planned.name] for planned in plan if planned.name in stages]
    content = read_scores(record, stages.get(EVALUATE))
    versions = versions_of(plan)
    state, now = record.state(), time.time()
    recipe = record.recipe()
    shown = [
        ReportStage(name=s.name, kind=s.kind, digest=s.digest, cached=s.cached,
                    seconds=s.seconds_at(now), artifact=s.artifact)
        for s in known
    ]  # fmt: skip
    return Report(
        run=record.run,
        state=state.state,
        seconds=state.seconds_at(now),
        stages=shown,
        scores=content.get("scores", {}),
        greedy=content.get("greedy", {}),
        no_verdict=content.get("no_verdict", {}),
        best_of=content.get("best_of", {}),
        intervals=content.get("intervals", {}),
        scaling=Scaling.model_validate(content.get("scaling", {})),
        sampled=content.get("sampled", {}),
        tasks=read_task_scores(record).get("scores", {}),
        gains=_gains(content, recipe, plan) if content else {},
        versions=versions,
        curves={
            planned.name: Curve.model_validate_json(data)
            for planned in plan
            if planned.spec.policy is not None
            and (data := read_file(record, stages.get(planned.name), CURVE_FILE)) is not None
        },
        warnings={s.name: s.warnings for s in known if s.warnings},
        admissions=_admissions(record, plan),
        pathologies=list(pathology_changes(content, versions)),
        rounds=rounds_of(record.head(), recipe, plan, content),
    )


def read_scores(record: RunRecord, stage: StageRecord | None) -> dict[str, Any]:
    """Content of the evaluate stage's `scores.json`; empty while it is not done."""
    if stage is None or not stage.artifact:
        return {}
    artifacts = ArtifactStore(record.store)
    found = artifacts.find(stage.kind, stage.digest)
    if found is None:
        raise StorageError(
            f"run {record.run}: its evaluation {stage.artifact} is no longer in the store; "
            f"create it again with `tributary resume {record.run}`"
        )
    return json.loads((artifacts.local(found) / "scores.json").read_text())


def read_task_scores(record: RunRecord) -> dict[str, Any]:
    """Content of the lm-eval stage's `task_scores.json`; empty while it is not done."""
    data = read_file(record, record.stages().get(LM_EVAL), TASK_SCORES_FILE)
    return {} if data is None else json.loads(data)


def read_file(record: RunRecord, stage: StageRecord | None, name: str) -> bytes | None:
    """Return a small file of a stage's artifact; None while there is none."""
    if stage is None or not stage.artifact:
        return None
    return ArtifactStore(record.store).read(stage.kind, stage.digest, name)


def _admissions(record: RunRecord, plan: Sequence[PlannedStage]) -> dict[str, Admission]:
    stages = record.stages()
    found: dict[str, Admission] = {}
    for planned in plan:
        stage = stages.get(planned.name)
        counts = read_file(record, stage, ADMISSION_FILE) if planned.kind == "admit" else None
        if counts is not None:
            refused = (read_file(record, stage, REFUSED_FILE) or b"").splitlines()
            found[planned.name] = Admission(
                counts=json.loads(counts), refused=[json.loads(line) for line in refused]
            )
    return found


def _gains(
    content: Mapping[str, Any], recipe: Recipe, plan: Sequence[PlannedStage]
) -> dict[str, Gain]:
    """Each model's last version against its first, where both were scored on the same problems."""
    means, samples = problem_outcomes(content), problem_samples(content)
    domains = {name: [e.domain.name] for name, e in recipe.experts.items() if e.domain is not None}
    everywhere = dict.fromkeys(domain for model, domain in means if model == UNIFIED)
    gains: dict[str, Gain] = {}
    for name, own in (domains | {UNIFIED: list(everywhere)}).items():
        since = first_version(versions_of(plan).get(name, []))
        pairs = [(means.get((since, d), []), means.get((name, d), [])) for d in own]
        known = [judged_in_both(a, b) if len(a) == len(b) else ([], []) for a, b in pairs]
        if not known or not all(row for row, _ in known):
            continue
        found = paired_over_domains([a for a, _ in known], [b for _, b in known])
        tries = [row for domain in own for row in samples[since, domain]]
        new = [
            after
            for (earlier, later), domain in zip(pairs, own, strict=True)
            for before, after, row in zip(earlier, later, samples[since, domain], strict=True)
            if before is not None and after is not None and not any(row)
        ]
        kinds = [stage.kind for stage in plan if stage.model == name]
        gains[name] = Gain(
            domain=own[0] if len(own) == 1 else MEAN, since=since,
            before=mean_of([mean_of(a) for a, _ in known]),
            after=mean_of([mean_of(b) for _, b in known]),
            mean=found.difference, low=found.low, high=found.high, p=found.p, test=found.test,
            problems=found.problems, samples=max(map(len, tries), default=0),
            unsolved=len(new), newly_solved=mean_of(new) if new else None,
            by=list(dict.fromkeys(kinds if since == BASE else kinds[1:])),
            teaches=name not in recipe.experts or recipe.experts[name].teaches,
        )  # fmt: skip
    return gains


def mean(row: Mapping[str, float]) -> float:
    return sum(row.values()) / len(row) if row else 0.0


def domains_of(scores: Scores) -> list[str]:
    return list(dict.fromkeys(domain for row in scores.values() for domain in row))


def score_table(
    scores: Scores, no_verdict: Mapping[str, Mapping[str, str]] | None = None
) -> tuple[list[str], list[list[str]]]:
    """Header and rows as text, models by row, with the mean over domains last."""
    lacking = no_verdict or {}
    domains = list(
        dict.fromkeys([*domains_of(scores), *(d for of in lacking.values() for d in of)])
    )
    rows = [
        [
            model,
            *(
                NO_VERDICT if domain in lacking.get(model, {}) else _cell(row.get(domain))
                for domain in domains
            ),
            # A mean over some of the domains would not compare with the others.
            _cell(mean(row) if len(row) == len(domains) else None),
        ]
        for model in dict.fromkeys([*scores, *lacking])
        for row in [scores.get(model, {})]
    ]
    return ["model", *domains, "mean"], rows


def task_table(tasks: Scores) -> tuple[list[str], list[list[str]]]:
    """Header and rows as text: tasks by row, as there may be many."""
    rows = [[task, *(_cell(row.get(task)) for row in tasks.values())] for task in domains_of(tasks)]
    return ["lm-eval task", *tasks], rows


def training_table(report: Report) -> tuple[list[str], list[list[str]]]:
    """Show each model's first and last version on its own domain: sampled, greedy and best of k."""
    kinds = {"temperature 1": ("scores", report.scores), "greedy": ("greedy", report.greedy)}
    if report.best_of:
        k = max(report.best_of, key=int)
        kinds[f"best of {k}"] = (f"best_of_{k}", report.best_of[k])
    rows: list[list[str]] = []
    for name, gain in report.gains.items():
        for model in (gain.since, name):
            cells = [
                _with_interval(scores, report.intervals.get(name, {}), model, gain.domain)
                for name, scores in kinds.values()
            ]
            rows.append([model, gain.domain, *cells])
    return ["model", "domain", *kinds], rows


def _with_interval(scores: Scores, intervals: Intervals, model: str, domain: str) -> str:
    """Example: `0.727 (0.68 to 0.77)`"""
    row = scores.get(model, {})
    value = (mean(row) if row else None) if domain == MEAN else row.get(domain)
    bounds = intervals.get(model, {}).get(domain)
    shown = "" if bounds is None else f" ({bounds[0]:.2f} to {bounds[1]:.2f})"
    return _cell(value) + shown


def stage_table(report: Report) -> tuple[list[str], list[list[str]]]:
    rows = [
        [s.name, s.kind, s.digest[:12], "cached" if s.cached else f"{s.seconds:.1f} s"]
        for s in report.stages
    ]
    return ["stage", "kind", "digest", "time"], rows


def notes(report: Report, recipe: Recipe) -> list[str]:
    """Return what a reader must know to read the scores honestly, and what training changed."""
    gains = [_gain(name, gain) for name, gain in report.gains.items()]
    return [*context_notes(report, recipe), *(gains if report.scores else [])]


def context_notes(report: Report, recipe: Recipe) -> list[str]:
    """Return what a reader must know to read the scores honestly."""
    said = [
        "A score is the mean outcome of the domain's verifier on held-out problems, sampled at "
        "temperature 1. Other terms of the training reward, such as repetition or length, are "
        "not part of it; a verifier may itself require a well-formed answer. Intervals are at"
        " 95%, over "
        "problems."
    ]
    if not report.scores:
        if report.tasks:
            return [
                "Scores are lm-eval's, by its own metrics; none is on held-out problems of the"
                " recipe's domains."
            ]
        if report.state == "completed":
            return ["The run was to evaluate nothing: it has no scores. Its page has the curves."]
        return ["The run has no scores yet: its evaluation is not done."]
    experts = [name for name in recipe.experts if name in report.scores]
    if UNIFIED in report.scores and len(experts) > 1:
        best = max(mean(report.scores[name]) for name in experts)
        gain = 100 * (mean(report.scores[UNIFIED]) - best)
        said.append(
            f"The unified model's mean over domains is {abs(gain):.1f} points"
            f" {'below' if gain < 0 else 'above'} the best expert's."
        )
    if recipe.base.random is not None and UNIFIED in report.scores:
        said.append(
            "Experts of a random base know one domain only, so a large gap between them and the "
            "unified model is by construction."
        )
    said += [line for name in report.versions for line in _on_its_way(name, report)]
    return said + _demonstrators(recipe, {d for of in report.scores.values() for d in of})


def _on_its_way(model: str, report: Report) -> list[str]:
    """Return what each stage of a longer path did, e.g. `agent-sft 0.84, agent-rl 0.86, agent
    0.90`.
    """
    names = [name for name in report.versions[model] if name in report.scores]
    if len(names) < 3:
        return []
    steps = ", ".join(f"{name} {mean(report.scores[name]):.3f}" for name in names)
    return [f"{model} on its way, mean over domains: {steps}."]


def _demonstrators(recipe: Recipe, scored: Collection[str]) -> list[str]:
    """Return which cold starts were taught wrongly on purpose, and how."""
    # Only of our own curricula is it known what the options mean.
    ours = [d for d in recipe.domains if d.curriculum.name in BUILT_IN and d.name in scored]
    told: list[str] = []
    for name, flaw in FLAWS.items():
        shares = {d.name: float(d.curriculum.options.get(name, 0.0)) for d in ours}
        flawed = [f"{domain} {share:.0%}" for domain, share in shares.items() if share]
        told += [f"these {flaw}: {', '.join(flawed)}"] if flawed else []
    if not told:
        return []
    return [
        "Cold starts are taught by imperfect demonstrators, so that RL has something to improve;"
        f" of their demonstrations, {'; '.join(told)}."
    ]


def _gain(model: str, gain: Gain) -> str:
    where = "as the mean over domains" if gain.domain == MEAN else "in its own domain"
    said = (
        f"Since {gain.since}, {model} moved from {gain.before:.2f} to {gain.after:.2f} {where}"
        f" ({100 * gain.mean:+.1f} points, 95% interval {100 * gain.low:+.1f} to"
        f" {100 * gain.high:+.1f}, {p_text(gain.p)})."
    )
    if gain.newly_solved is None:
        return said
    return (
        f"{said} On the {gain.unsolved} problem{'' if gain.unsolved == 1 else 's'} that"
        f" {gain.since} never solved in {gain.samples} samples, {model} scores"
        f" {gain.newly_solved:.2f}."
    )


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
