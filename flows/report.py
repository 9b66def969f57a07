"""A run's report: the table of scores by model and domain, its stages and their times."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from flows.recipe import Recipe
from flows.runs import RunRecord, StageRecord
from infra.artifacts import ArtifactStore
from infra.config import Config
from infra.errors import StorageError
from infra.home import home

Scores = dict[str, dict[str, float]]


class ReportStage(Config):
    name: str
    kind: str
    digest: str
    cached: bool
    seconds: float
    artifact: str


class Report(Config):
    """The shape that `tributary report --json` keeps."""

    run: str
    state: str
    seconds: float
    stages: list[ReportStage]
    scores: Scores
    """model -> domain -> mean outcome at temperature 1"""
    greedy: Scores


def build_report(record: RunRecord, order: list[str]) -> Report:
    """The report as far as the run got; `order` is the plan's stage names."""
    stages = record.stages()
    known = [stages[name] for name in order if name in stages]
    scores, greedy = read_scores(record, stages.get("evaluate"))
    state, now = record.state(), time.time()
    return Report(
        run=record.run,
        state=state.state,
        seconds=state.seconds_at(now),
        stages=[
            ReportStage(
                name=s.name,
                kind=s.kind,
                digest=s.digest,
                cached=s.cached,
                seconds=s.seconds_at(now),
                artifact=s.artifact,
            )
            for s in known
        ],
        scores=scores,
        greedy=greedy,
    )


def read_scores(record: RunRecord, stage: StageRecord | None) -> tuple[Scores, Scores]:
    """Sampled and greedy scores of the evaluate stage; empty while it is not done."""
    if stage is None or not stage.artifact:
        return {}, {}
    artifacts = ArtifactStore(record.store, home() / "cache")
    found = artifacts.find(stage.kind, stage.digest)
    if found is None:
        raise StorageError(
            f"run {record.run}: its evaluation {stage.artifact} is gone from the store; "
            f"make it again with `tributary resume {record.run}`"
        )
    content: Mapping[str, Any] = json.loads((artifacts.local(found) / "scores.json").read_text())
    return content["scores"], content["greedy"]


def mean(row: Mapping[str, float]) -> float:
    return sum(row.values()) / len(row) if row else 0.0


def domains_of(scores: Scores) -> list[str]:
    return list(dict.fromkeys(domain for row in scores.values() for domain in row))


def score_table(scores: Scores) -> tuple[list[str], list[list[str]]]:
    """Header and rows as text, models by row, with the mean over domains last."""
    domains = domains_of(scores)
    rows = [
        [
            model,
            *(_cell(row.get(domain)) for domain in domains),
            # A mean over some of the domains would not compare with the others.
            _cell(mean(row) if len(row) == len(domains) else None),
        ]
        for model, row in scores.items()
    ]
    return ["model", *domains, "mean"], rows


def markdown_table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def stage_table(report: Report) -> tuple[list[str], list[list[str]]]:
    rows = [
        [s.name, s.kind, s.digest[:12], "cached" if s.cached else f"{s.seconds:.1f} s"]
        for s in report.stages
    ]
    return ["stage", "kind", "digest", "time"], rows


def notes(report: Report, recipe: Recipe) -> list[str]:
    """What a reader must know to read the scores honestly."""
    said = [
        "A score is the mean outcome of the domain's verifier on held-out problems, sampled at "
        "temperature 1; no shaping, format or length term enters it."
    ]
    if not report.scores:
        return ["The run has no scores yet: its evaluation is not done."]
    experts = [m for m in report.scores if f"{m}-sft" in report.scores and m != "unified"]
    if "unified" in report.scores and len(experts) > 1:
        best = max(mean(report.scores[m]) for m in experts)
        gain = 100 * (mean(report.scores["unified"]) - best)
        said.append(
            f"The unified model's mean over domains is {gain:+.1f} points from the best expert's."
        )
    if recipe.base.random is not None and recipe.unified is not None:
        said.append(
            "Experts of a random base know one domain only, so a large gap between them and the "
            "unified model is by construction."
        )
    said += _operators(report)
    said += _demonstrators(recipe)
    said += [line for name in experts if (line := _rl_gain(report, recipe, name))]
    return said


def _operators(report: Report) -> list[str]:
    """What each part of `sft+opd` did to the mean over domains, e.g. `unified-sft 0.84`."""
    if "unified-opd" not in report.scores:
        return []
    names = [m for m in ("unified-sft", "unified-opd", "unified") if m in report.scores]
    steps = ", ".join(f"{name} {mean(report.scores[name]):.3f}" for name in names)
    return [f"The unified model on its way, mean over domains: {steps}."]


def _demonstrators(recipe: Recipe) -> list[str]:
    """Which cold starts were taught wrongly on purpose, e.g. `reasoning 30%`."""
    shares = {d.name: d.curriculum.options.get("noise") for d in recipe.domains}
    noisy = [f"{name} {share:.0%}" for name, share in shares.items() if share]
    if not noisy:
        return []
    return [
        "Cold starts are taught by an imperfect demonstrator, so that RL has something to mend; "
        f"share of its answers with an error: {', '.join(noisy)}."
    ]


def _rl_gain(report: Report, recipe: Recipe, expert: str) -> str:
    domain = recipe.experts[expert].domain.name
    cold, best = report.scores[f"{expert}-sft"].get(domain), report.scores[expert].get(domain)
    if cold is None or best is None:
        return ""
    moved = f"RL moved {expert} from {cold:.2f} to {best:.2f} in its own domain"
    return f"{moved} ({100 * (best - cold):+.1f} points)."


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
