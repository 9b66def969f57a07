"""Finishes a run: scores to MLflow, models registered, the report written; says its result in a
few words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from flows.plan import EVALUATE, PlannedStage
from flows.post_train import UNIFIED, best_of_rounds
from flows.reports.outcome import outcome_of, warning_lines
from flows.reports.page import report_path, write_page
from flows.reports.report import Report, build_report, mean, read_scores
from flows.running.records import RunHead
from flows.running.run import RecipeRun
from infra.store.artifacts import ArtifactRecord

_STAMP = re.compile(r"-\d{8}-\d{6}-[0-9a-f]{4}$")
"""what a run's id has in addition to its name"""
WARNED = "with warnings"
"""tag of a flow run that completed, but has warnings"""
_MOST = 4
"""scores in one line"""


def shown_name(head: RunHead) -> str:
    """Example: `tuesday: cpu-smoke/agent seed 1`"""
    recipe, given = str(head.recipe["name"]), given_name(head)
    part = _part_of(head.flow, head.arguments)
    what = f"{recipe}{part} seed {head.recipe['seed']}"
    return what if given == recipe else f"{given}: {what}"


def given_name(head: RunHead) -> str:
    """The name that a person gave a run; its recipe's by default."""
    return _STAMP.sub("", head.run)


def shown_tags(head: RunHead, is_warned: bool = False) -> list[str]:
    """Tags of its flow run, to find all runs of a recipe, of a seed, of a name, with warnings."""
    names = str(head.recipe["name"]), f"seed {head.recipe['seed']}", given_name(head)
    return list(dict.fromkeys([*names, *([WARNED] if is_warned else [])]))


def _part_of(flow: str, arguments: Mapping[str, object]) -> str:
    match flow:
        case "expert":
            return f"/{arguments['name']}"
        case "distill-rounds":
            return f"/{arguments['expert']} rounds"
        case "evaluate":
            return " evaluate"
        case "replay":
            return f"/{arguments['stage']} replay"
        case _:
            return ""


def result_of(report: Report) -> str:
    """Example: `unified 0.86`, the mean over domains; an expert's is that of its own domain. Of a
    run with scores of lm-eval alone: `agent arc_easy acc 0.71`."""
    scores = {name: mean(row) for name, row in report.scores.items()}
    if not scores and not report.tasks:
        return f"{len(report.stages)} stages, none of them an evaluation"
    own = {name: gain.after for name, gain in report.gains.items()}
    said = [f"{name} {own.get(name, scores[name]):.2f}" for name in _last(scores, report)]
    said = said or [
        f"{name} {task} {value:.2f}"
        for name in _last(report.tasks, report)
        for task, value in report.tasks[name].items()
    ]
    more = len(said) - _MOST
    return ", ".join(said[:_MOST]) + (f" and {more} more" if more > 0 else "")


def message_of(report: Report) -> str:
    """The result, and what is wrong with it: the last word of the run in Prefect."""
    lines = warning_lines(report)
    if not lines:
        return result_of(report)
    more = f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""
    return f"WARNING, {lines[0]}{more}; {result_of(report)}"


def _last(scored: Mapping[str, object], report: Report) -> list[str]:
    """Choose of the models that have scores: the unified one, else the last versions, else all."""
    last = {names[-1] for names in report.versions.values() if names}
    wanted = [UNIFIED] if UNIFIED in scored else [name for name in scored if name in last]
    return wanted or list(scored)


def conclude(
    run: RecipeRun, plan: Sequence[PlannedStage], artifacts: Mapping[str, ArtifactRecord]
) -> None:
    """Called while the run still counts as running: a failure here is the run's failure."""
    content = read_scores(run.record, run.record.stage(EVALUATE))
    report = build_report(run.record, plan)
    run.tracked.scores(plan, report.scores)
    run.tracked.task_scores(plan, report.tasks)
    run.tracked.say_best(plan, report.scores, report.tasks, outcome_of(report, content).best)
    run.tracked.rounds(report.rounds)
    best = best_of_rounds(report.rounds)
    run.tracked.register(plan, artifacts, report.scores, best.stage if best else "")
    run.record.add_links(run.tracked.links() | {"report": report_path(run.record.run).as_uri()})


def publish(run: RecipeRun, plan: list[PlannedStage]) -> Report:
    """The report of a run that is over, however it ended."""
    report = build_report(run.record, plan)
    write_page(run.record, report, plan)
    if report.scores or report.tasks:
        run.tracked.say_result(result_of(report))
    run.tracked.finish("FINISHED" if report.state == "completed" else "FAILED")
    return report
