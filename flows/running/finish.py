"""What a run does last: scores to MLflow, models registered, the report written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flows.page.shown import result_of
from flows.plan import EVALUATE, PlannedStage
from flows.reports.page import report_path, write_page
from flows.reports.report import Report, build_report, read_scores, read_task_scores
from flows.rounds.promotion import best_of_rounds, rounds_of
from flows.running.run import RecipeRun
from infra.store.artifacts import ArtifactRecord


def conclude(
    run: RecipeRun, plan: Sequence[PlannedStage], artifacts: Mapping[str, ArtifactRecord]
) -> None:
    """Called while the run still counts as running: a failure here is the run's failure."""
    content = read_scores(run.record, run.record.stage(EVALUATE))
    scores = content.get("scores", {})
    tasks = read_task_scores(run.record).get("scores", {})
    run.tracked.scores(plan, scores)
    run.tracked.task_scores(plan, tasks)
    run.tracked.say_best(plan, scores, tasks)
    rounds = rounds_of(run.record.head(), run.recipe, plan, content)
    run.tracked.rounds(rounds)
    best = best_of_rounds(rounds)
    run.tracked.register(plan, artifacts, scores, best.stage if best else "")
    run.record.add_links(run.tracked.links() | {"report": report_path(run.record.run).as_uri()})


def publish(run: RecipeRun, plan: list[PlannedStage]) -> Report:
    """The report of a run that is over, however it ended."""
    report = build_report(run.record, plan)
    write_page(run.record, report, plan)
    if report.scores or report.tasks:
        run.tracked.say_result(result_of(report))
    run.tracked.finish("FINISHED" if report.state == "completed" else "FAILED")
    return report
