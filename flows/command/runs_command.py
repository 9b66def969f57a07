"""Works on runs by name: `tributary runs`, `logs`, `cancel`, `retry`, `replay`, and `notify` for
those that fail.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from typing import TextIO

from rich.markup import escape
from rich.table import Table

from flows.catalog import DISTILL_ROUNDS, plan_of
from flows.command.app import CommandConsole, errors, print_json
from flows.command.run_command import start_flow, watch
from flows.explain import nearest
from flows.page.notify import is_notifying, notify_at, stop_notifying
from flows.post_train import written
from flows.running.chosen_stages import chosen_of, made_from
from flows.running.new_run import new_run
from flows.running.open import running_stack, stop_run
from flows.running.prefect_api import PrefectApi, RefusedRun, refused_runs
from flows.running.records import (
    DONE,
    RunEntry,
    RunRecord,
    RunState,
    StageRecord,
    damaged_entries,
    find_run,
    find_run_of,
    run_entries,
    store_of,
)
from flows.running.run_lock import interrupt, is_running
from infra.config import Config
from infra.errors import DamagedRecord, InputError, TributaryError
from infra.shown_text import shown
from tasks.durable.launch import log_path
from tasks.durable.protocol import said_of

POLL_SECONDS = 0.5
LIVE = ("pending", "running")


class ListedRun(Config):
    """One line of the list."""

    run: str
    recipe: str
    state: str
    """`gone`: its store does not have it any more; `unknown`: its store is out of reach; `damaged`:
    its record cannot be read; `refused`: a form asked for it, and it never began"""
    created: float
    """Unix time"""
    seconds: float
    """wall time, also over resumes"""
    fault: str = ""
    """why its record cannot be read, or why it was refused"""


def show_runs(limit: int, json: bool, console: CommandConsole) -> int:
    if limit < 1:
        raise InputError(f"--limit {limit}: how many runs to show, from 1")
    known = [*map(_listed, run_entries()[:limit]), *map(_refused, refused_runs())]
    newest = sorted(known, key=lambda run: run.created, reverse=True)[:limit]
    listed = [*newest, *(_damaged(name, str(why)) for name, why in damaged_entries().items())]
    if json:
        print_json(listed)
        return 0
    if not listed:
        console.print("no runs yet; start one with `tributary run RECIPE`", markup=False)
        return 0
    console.print(_table(listed))
    for state, what in (("refused", "were refused"), ("damaged", "cannot be read")):
        these = [run for run in listed if run.state == state]
        if these:
            console.print(f"{len(these)} of {len(listed)} runs {what}:", highlight=False)
        for run in these:
            text = f"  {run.run}: {run.fault}"
            console.say(text)
    return 0


def _listed(entry: RunEntry) -> ListedRun:
    state, seconds, fault = "unknown", 0.0, ""
    try:
        record = RunRecord(store_of(entry.storage), entry.run)
        now = record.state()
        state, seconds = now.state if record.exists else "gone", now.seconds_at(time.time())
    except DamagedRecord as error:
        state, fault = "damaged", str(error)
    except TributaryError:  # one store out of reach hides no other's runs
        pass
    return ListedRun(
        run=entry.run, recipe=entry.recipe, state=state, created=entry.created, seconds=seconds,
        fault=fault,
    )  # fmt: skip


def _refused(refused: RefusedRun) -> ListedRun:
    return ListedRun(
        run=refused.asked, recipe="", state="refused", created=refused.at, seconds=0.0,
        fault=refused.why,
    )  # fmt: skip


def _damaged(run: str, fault: str) -> ListedRun:
    """Return a run of which this home's entry cannot be read."""
    return ListedRun(run=run, recipe="", state="damaged", created=0.0, seconds=0.0, fault=fault)


def _table(listed: Sequence[ListedRun]) -> Table:
    table = Table(box=None, pad_edge=False)
    # An id is there to be copied: other columns give way to it.
    table.add_column("run", no_wrap=True, min_width=max(len(run.run) for run in listed))
    for header in ("recipe", "state", "started (UTC)", "seconds"):
        table.add_column(header)
    for run in listed:
        when = time.strftime("%Y-%m-%d %H:%M", time.gmtime(run.created)) if run.created else ""
        table.add_row(escape(run.run), escape(run.recipe), run.state, when, f"{run.seconds:.0f}")
    return table


def show_log(run: str, stage: str, follow: bool, console: CommandConsole) -> int:
    """Print the log of a stage's last job; with `follow` until the stage, or its run, is over."""
    record, stage = find_run_of(run, stage, "logs")
    chosen = _stage(record, stage)
    path = log_path(chosen.job)
    if not path.is_file():
        raise InputError(f"stage {chosen.name}: its log {path} is not on this machine")
    console.print(f"{record.run} {chosen.name}: {path}", markup=False, soft_wrap=True)
    with path.open(errors="replace") as log:
        live = follow
        while live:
            live = _is_live(record, chosen)  # before reading: what it wrote last is printed too
            _copy(log, chosen.job, live)
            if live:
                time.sleep(POLL_SECONDS)
        _copy(log, chosen.job, live=False)
    return 0


_RAYS_OWN = re.compile(r"\S+ \S+\tINFO job_manager\.py|Running entrypoint for job ")
"""how each log begins; the file keeps it"""


def _copy(log: TextIO, job: str, live: bool) -> None:
    """Print what was written to the log since it was read; an event is said in words. While it is
    written, a line that has no end yet waits."""
    at = log.tell()
    while line := log.readline():
        if live and not line.endswith("\n"):
            log.seek(at)
            break
        at = log.tell()
        if not _RAYS_OWN.match(line):
            sys.stdout.write(shown(said_of(job, line)))
    sys.stdout.flush()


def _stage(record: RunRecord, wanted: str) -> StageRecord:
    """Raises InputError for a stage that the run has not, or that has no job."""
    stages = record.stages()
    if wanted and wanted not in stages:
        raise InputError(
            f"run {record.run} has reached no stage `{wanted}`{nearest(wanted, list(stages))};"
            f" it has: {', '.join(stages) or 'none'}"
        )
    named = [stages[wanted]] if wanted else list(stages.values())
    started = [stage for stage in named if stage.job]
    if not started:
        what = f"stage {wanted}" if wanted else f"run {record.run}: every stage so far"
        raise InputError(f"{what} ran no job (cached, or not started): there is no log")
    return max(started, key=lambda stage: stage.started)


def _is_live(record: RunRecord, stage: StageRecord) -> bool:
    """Return whether this job of the stage may still write."""
    now = record.stage(stage.name)
    is_same = now is not None and now.job == stage.job and now.state in LIVE
    return is_same and is_running(record.run)


CANCEL_SECONDS = 90.0
"""what its jobs may take for their checkpoints, and its flow to leave"""


def cancel_run(run: str, json: bool, console: CommandConsole) -> int:
    """0 when it does not run any more; 1 if it still does after `CANCEL_SECONDS`."""
    record = find_run(run)
    before = record.state()
    if before.state not in LIVE and not record.has_jobs and not is_running(record.run):
        return _said(
            record, before, f"run {record.run} does not run: it is {before.state}", json, console
        )
    if not json:
        console.say(f"cancelling {record.run}: its stages write a checkpoint and stop ...")
    _ask(record, before)
    deadline = time.monotonic() + CANCEL_SECONDS
    while is_running(record.run) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    if is_running(record.run):
        text = f"run {record.run} has not ended in {CANCEL_SECONDS:.0f} s; cancel it again"
        return _said(record, record.state(), text, json, console, code=1)
    stop_run(record)  # what a process that died with its signal did not put on record
    return _said(record, record.state(), f"{record.run} is stopped", json, console)


def _ask(record: RunRecord, state: RunState) -> None:
    """Ask its flow, through Prefect, or a command that runs it by itself, by the signal of
    Ctrl-C."""
    if record.head().in_process:
        interrupt(record.run)
    elif state.flow_run:
        PrefectApi(running_stack().prefect_api).cancel(state.flow_run)
        stop_run(record)


def _said(
    record: RunRecord,
    state: RunState,
    text: str,
    json: bool,
    console: CommandConsole,
    code: int = 0,
) -> int:
    if json:
        print_json({"run": record.run, "state": state.state, "runs": is_running(record.run)})
        return code
    console.say(text)
    if state.state != "completed":
        console.say(f"continue with: tributary resume {record.run}")
    return code


def retry_stage(run: str, stage: str, in_process: bool, console: CommandConsole) -> int:
    """Start a run of the same recipe that does them again; -> exit code."""
    record, stage = find_run_of(run, stage, "retry")
    arguments, again = _again(record, stage)
    if not in_process:
        PrefectApi(running_stack().prefect_api).require(record.head().flow)
    console.say(f"a new run does {', '.join(again)} of {record.run} again")
    head = record.head()
    return start_flow(head.flow, arguments, record.recipe(), "", in_process, console)


def _again(record: RunRecord, stage: str) -> tuple[dict[str, object], list[str]]:
    """Arguments of the flow that runs the stages again, and their names. Raises InputError."""
    head = record.head()
    if not stage:
        raise InputError(f"name the stage too: tributary retry {record.run} STAGE")
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


FLOW = "replay"


def replay_stage(
    stage: str, run: str, in_process: bool, json: bool, console: CommandConsole
) -> int:
    """0 if every tensor is the same to the bit, 1 otherwise."""
    recorded = find_run(run)
    head, recipe = recorded.head(), recorded.recipe()
    if head.flow == FLOW:
        raise InputError(f"run {recorded.run} is a replay; name the run that it repeats")
    arguments = {"stage": stage, "flow": head.flow, "arguments": head.arguments}
    plan = plan_of(FLOW, recipe, arguments)
    made = _made(recorded, [planned.name for planned in plan[:-1]])
    if not in_process:
        PrefectApi(running_stack().prefect_api).require(FLOW)
    record = new_run(recipe, FLOW, arguments, in_process=in_process)
    record.take_over(made.values())  # code that changed since then is what one may want to try
    code = watch(record, errors if json else console)
    return code or _show(record, plan[-1].name, json, console)


def _made(recorded: RunRecord, names: list[str]) -> dict[str, StageRecord]:
    """The stage and what it was made from. Raises InputError unless all are done."""
    stages = recorded.stages()
    for name in names:
        if name not in stages or stages[name].state not in DONE:
            raise InputError(
                f"stage {name} of run {recorded.run} is not done; finish it with `tributary resume"
                f" {recorded.run}`, then replay"
            )
    return {name: stages[name] for name in names}


def _show(record: RunRecord, name: str, json: bool, console: CommandConsole) -> int:
    stage = record.stage(name)
    assert stage is not None, "the flow is completed"
    counts = ("steps", "tensors", "tensors_differing")
    steps, tensors, differing = (int(stage.metrics[name]) for name in counts)
    if json:
        largest = stage.metrics["largest_difference"] if differing else 0.0
        same = {"run": record.run, "same": not differing, "largest_difference": largest}
        print_json({**same, "steps": steps, "tensors": tensors, "tensors_differing": differing})
        return 1 if differing else 0
    if not differing:
        console.print(f"the same weights after {steps} steps: all {tensors} tensors, to the bit")
        return 0
    console.print(
        f"other weights after {steps} steps: {differing} of {tensors} tensors differ, by"
        f" {stage.metrics['largest_difference']:.3g} at most"
    )
    return 1


def show_notify(url: str, off: bool, console: CommandConsole) -> int:
    api = PrefectApi(running_stack().prefect_api)
    if off:
        text = "nobody is told any more." if stop_notifying(api) else "nobody was told before."
    elif url:
        notify_at(api, url)
        text = "a run that fails or crashes calls the webhook from now on; it was called once now."
    elif is_notifying(api):
        text = "a webhook is told of runs that fail; end it with: tributary notify --off"
    else:
        text = "nobody is told of runs that fail; begin with: tributary notify URL"
    console.say(text)
    return 0
