"""`tributary retry`: a stage of a run again, with everything that is made from it."""

from __future__ import annotations

from flows.catalog import DISTILL_ROUNDS, plan_of
from flows.command.output import CommandConsole
from flows.command.run import start_flow
from flows.distill_rounds import written
from flows.explain import nearest
from flows.running.chosen_stages import chosen_of, made_from
from flows.running.records import RunRecord, find_run
from flows.running.run_lock import is_running
from infra.errors import InputError


def retry_stage(run: str, stage: str, in_process: bool, console: CommandConsole) -> int:
    """Start a run of the same recipe that does them again; -> exit code."""
    record = find_run(run)
    arguments, again = _again(record, stage)
    console.say(f"a new run does {', '.join(again)} of {record.run} again")
    head = record.head()
    return start_flow(head.flow, arguments, record.recipe(), "", in_process, console)


def _again(record: RunRecord, stage: str) -> tuple[dict[str, object], list[str]]:
    """Arguments of the flow that runs the stages again, and their names. Raises InputError."""
    head = record.head()
    if head.flow == DISTILL_ROUNDS:
        raise InputError(
            f"run {record.run} added rounds to an expert, and a new run would add more: tributary"
            f" rounds RECIPE --expert {head.arguments['expert']}. To finish this one: tributary"
            f" resume {record.run}"
        )
    plan = plan_of(head.flow, record.recipe(), head.arguments)
    names = [planned.name for planned in plan if not planned.is_stored]
    if stage not in names:
        raise InputError(
            f"run {record.run} has no stage `{stage}`{nearest(stage, names)}; it has"
            f" {', '.join(names)}"
        )
    if is_running(record.run):
        raise InputError(
            f"run {record.run} is running; end it with `tributary cancel {record.run}`, then retry"
        )
    meant = made_from(stage, plan)
    again = [name for name in names if name in meant]
    chosen = chosen_of(head.arguments).model_copy(update={"force_stages": again})
    return {**written(head.arguments), **chosen.arguments}, again
