"""`tributary cancel`: end a run after a checkpoint, wherever it runs."""

from __future__ import annotations

import time

from flows.command.output import CommandConsole, print_json
from flows.running.open import stop_run
from flows.running.prefect_api import PrefectApi
from flows.running.records import RunRecord, RunState, find_run
from flows.running.run_lock import interrupt, is_running

CANCEL_SECONDS = 90.0
"""what its jobs may take for their checkpoints, and its flow to leave"""
POLL_SECONDS = 0.5
LIVE = ("pending", "running")


def cancel_run(run: str, json: bool, console: CommandConsole) -> int:
    """0 when it does not run any more; 1 if it still does after `CANCEL_SECONDS`."""
    record = find_run(run)
    before = record.state()
    if before.state not in LIVE and not is_running(record.run):
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
    """Its flow, through Prefect; a command that runs it by itself, by the signal of Ctrl-C."""
    from flows.running.open import running_stack

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
