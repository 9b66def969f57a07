"""What a run does last: scores to MLflow, models registered, the report written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flows.page.shown import result_of
from flows.plan import EVALUATE, PlannedStage
from flows.reports.outcome import outcome_of
from flows.reports.page import report_path, write_page
from flows.reports.report import Report, build_report, read_scores
from flows.rounds.promotion import best_of_rounds
from flows.running.run import RecipeRun
from infra.store.artifacts import ArtifactRecord


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
