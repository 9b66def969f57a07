"""`tributary run` and `resume`: start, watch, detach, cancel."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from typing import Any, Protocol

from flows.catalog import DISTILL_ROUNDS, plan_of
from flows.command.app import CommandConsole
from flows.command.live_table import LiveTable, show_end
from flows.load import load_recipe
from flows.page.form import asked_by_command, form_of
from flows.page.prefect_app import RAY_PAGE
from flows.recipe import Recipe
from flows.running.chosen_stages import ChosenStages
from flows.running.prefect_api import PrefectApi
from flows.running.records import RunRecord, check_name, find_run
from flows.running.run_lock import is_running
from infra.errors import DETACHED, InfrastructureError, StageFailed
from infra.guard import login_link
from infra.store.artifacts import ArtifactStore
from infra.tracking.pages import front_page

CANCEL_WINDOW_SECONDS = 2.0
CANCEL_SECONDS = 90.0
POLL_SECONDS = 1.0
SERVER_POLL_SECONDS = 2.0
SILENT_SECONDS = 600.0
"""how long the command keeps following while the Prefect server does not answer"""
LOST_SECONDS = 15.0
"""how long a flow that Prefect takes for running may have no process; Prefect itself needs minutes
to see that a flow and its worker died"""
LOADING_SECONDS = 90.0
"""the same for a flow that has just begun: on a busy machine it loads for a while first"""
_LOST = "LOST"


def start(
    recipe: str,
    changes: list[str],
    expert: str,
    chosen: ChosenStages,
    name: str,
    in_process: bool,
    console: CommandConsole,
) -> int:
    """Run the recipe, or one expert of it, or some stages; -> exit code."""
    flow, arguments = ("expert", {"name": expert}) if expert else ("post-train", {})
    arguments |= chosen.arguments
    asked = asked_by_command(recipe, changes, name)
    loaded = load_recipe(recipe, changes)
    return start_flow(flow, arguments, loaded, name, in_process, console, asked)


def start_rounds(
    recipe: str,
    changes: list[str],
    expert: str,
    rounds: int,
    name: str,
    in_process: bool,
    console: CommandConsole,
) -> int:
    """Add rounds of self-distillation to one expert; 0 also if there is nothing to do."""
    from flows.running.new_run import NotDue

    arguments = {"expert": expert, "rounds": rounds}
    loaded = load_recipe(recipe, changes)
    try:
        asked = asked_by_command(recipe, changes, name)
        return start_flow(DISTILL_ROUNDS, arguments, loaded, name, in_process, console, asked)
    except NotDue as why:
        console.say(f"nothing to do: {why}")
        return 0


def start_flow(
    flow: str,
    arguments: dict[str, Any],
    loaded: Recipe,
    name: str,
    in_process: bool,
    console: CommandConsole,
    asked: Mapping[str, Any] | None = None,
) -> int:
    """Check a flow's plan, put its run on record and follow it; -> exit code.

    `asked`: how a form would ask for the recipe by its name, if it has one.
    """
    from flows.checks.recipe_checks import cautions, check_recipe
    from flows.checks.store_checks import require_variables
    from flows.running.chosen_stages import require_stored
    from flows.running.new_run import new_run
    from flows.running.open import running_stack

    check_name(name)
    require_variables()
    plan = plan_of(flow, loaded, arguments)
    check_recipe(loaded, plan)
    require_stored(loaded, plan)
    for caution in cautions(loaded, plan):
        console.say(f"warning: {caution}")
    if not in_process:  # before anything is on record
        PrefectApi(running_stack().prefect_api).require(flow)
    record = new_run(loaded, flow, arguments, name=name, in_process=in_process, asked=asked)
    return watch(record, console)


def continue_run(run: str, console: CommandConsole) -> int:
    record = find_run(run)
    state = record.state()
    gone = _removed(record) if state.state == "completed" else []
    if state.state == "completed" and not gone:
        console.print(
            f"run {record.run} is complete: tributary report {record.run}",
            markup=False,
            soft_wrap=True,
        )
        return 0
    if gone:
        console.print(
            f"run {record.run} was complete; no longer in the store, and made again:"
            f" {', '.join(gone)}",
            markup=False,
            soft_wrap=True,
        )
    return watch(record, console)


def _removed(record: RunRecord) -> list[str]:
    """The stages that were done, and whose artifacts somebody has deleted since."""
    artifacts = ArtifactStore(record.store)
    return [
        stage.name
        for stage in record.stages().values()
        if stage.is_done and artifacts.find(stage.kind, stage.digest) is None
    ]


class _StartedFlow(Protocol):
    """A run that continues while the command follows it."""

    @property
    def is_over(self) -> bool: ...
    def detach(self, console: CommandConsole) -> None: ...
    def cancel(self) -> None: ...
    def result(self) -> None: ...


def watch(record: RunRecord, console: CommandConsole) -> int:
    """Start a run that is on record, or follow it; -> exit code."""
    head = record.head()
    plan = plan_of(head.flow, record.recipe(), head.arguments)
    started: _StartedFlow = (
        _Here(record, console) if head.in_process else _Deployed(record, console)
    )
    table = LiveTable(record, plan, console)
    try:
        with table:
            while not started.is_over:
                table.update()
                time.sleep(POLL_SECONDS)
            table.update()
    except KeyboardInterrupt:
        return _interrupted(record, started, console)
    started.result()
    return show_end(record, plan, console)


def _interrupted(record: RunRecord, started: _StartedFlow, console: CommandConsole) -> int:
    """One Ctrl-C detaches from the run; a second one within two seconds cancels it."""
    try:
        console.print("Ctrl-C again within 2 s cancels the run.")
        time.sleep(CANCEL_WINDOW_SECONDS)
        started.detach(console)
    except KeyboardInterrupt:
        console.print("cancelling: the running stages write a checkpoint and stop ...")
        started.cancel()
        console.print("cancelled.")
    console.print(f"continue with: tributary resume {record.run}", markup=False, soft_wrap=True)
    return DETACHED


class _Here:
    """A run in this process."""

    def __init__(self, record: RunRecord, console: CommandConsole) -> None:
        from flows.running.in_process import InProcessRun

        # A scheduler or `tributary cancel` ends it as Ctrl-C does; a shell's job ignores SIGINT.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        self._run = InProcessRun(
            record, lambda text: console.print(text, markup=False, soft_wrap=True)
        )

    @property
    def is_over(self) -> bool:
        return self._run.is_over

    def detach(self, console: CommandConsole) -> None:
        console.print("stopping after a checkpoint ...")
        self._run.stop()

    def cancel(self) -> None:
        self._run.stop()

    def result(self) -> None:
        self._run.result()


class _Deployed:
    """A run through a Prefect deployment; if it is already running, follow it."""

    def __init__(self, record: RunRecord, console: CommandConsole) -> None:
        from flows.running.open import running_stack

        stack = running_stack()
        self._record, self._api = record, PrefectApi(stack.prefect_api)
        known = record.state().flow_run
        if known and self._goes_on(known):
            console.print(
                f"{record.run} is still running: following it", markup=False, soft_wrap=True
            )
            self._flow_run = known
        else:
            self._flow_run = self._start()
        self._state, self._message, self._asked = "PENDING", "", -SERVER_POLL_SECONDS
        self._silent, self._console = False, console
        self._answered = self._lived = time.monotonic()
        self._has_begun = False
        for title, page in (
            ("Prefect run", f"{stack.prefect_ui}/runs/flow-run/{self._flow_run}"),
            ("MLflow", front_page(stack.mlflow_uri)),
            ("Ray", stack.prefect_ui + RAY_PAGE),
        ):
            console.print(f"{title}: {login_link(page)}", markup=False, soft_wrap=True)

    def _goes_on(self, flow_run: str) -> bool:
        """A flow that Prefect gave up while its process lives hangs; the next process ends it."""
        if not is_running(self._record.run):
            return self._api.is_waiting(flow_run)
        try:
            return self._api.state(flow_run)[0] != "CRASHED"
        except InfrastructureError:  # a server that is away is no sign of anything
            return True

    def _start(self) -> str:
        head = self._record.head()
        started = self._api.start(head.flow, form_of(head), self._record.run)
        state = self._record.state()
        self._record.put_state(state.model_copy(update={"flow_run": started}))
        return started

    @property
    def is_over(self) -> bool:
        if time.monotonic() - self._asked >= SERVER_POLL_SECONDS:
            self._asked = time.monotonic()
            self._ask()
        if self._state == "CRASHED":  # a flow that lives says so soon
            return not is_running(self._record.run)
        return self._state in ("COMPLETED", "FAILED", "CANCELLED", _LOST)

    def _ask(self) -> None:
        """Take the flow's state up. Raises InfrastructureError after a long silence."""
        try:
            self._state, self._message = self._api.state(self._flow_run)
            lives = self._has_a_process()
        except InfrastructureError as error:
            silent = time.monotonic() - self._answered
            if silent > SILENT_SECONDS:
                raise
            if not self._silent:
                text = f"warning: the run may continue, but this command cannot see it: {error}"
                self._console.print(text, markup=False, soft_wrap=True)
            self._silent = True
            return
        now = time.monotonic()
        self._answered, self._silent = now, False
        is_loading = self._state == "RUNNING" and not self._has_begun
        if lives:
            self._lived, self._has_begun = now, self._state == "RUNNING"
        elif now - self._lived > (LOADING_SECONDS if is_loading else LOST_SECONDS):
            hangs = is_running(self._record.run)
            self._state = _LOST
            self._message = f"its process {'hangs; resume ends it' if hangs else 'is gone'}"

    def _has_a_process(self) -> bool:
        """Or needs none as yet."""
        match self._state:
            case "RUNNING":
                return is_running(self._record.run)
            case "PENDING":
                return self._api.is_waiting(self._flow_run)
            case "CRASHED":
                return False
            case _:
                return True

    def detach(self, console: CommandConsole) -> None:
        console.print(f"detached: {self._record.run} goes on.", markup=False, soft_wrap=True)

    def cancel(self) -> None:
        from flows.running.open import stop_run

        self._api.cancel(self._flow_run)
        stop_run(self._record)
        deadline = time.monotonic() + CANCEL_SECONDS
        while not self.is_over and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)

    def result(self) -> None:
        """The flow's own record says more than Prefect, unless the flow's process was lost."""
        if self._state == "COMPLETED":
            return
        state = self._record.state()
        if state.state == "completed":  # by another flow, which this one gave way to
            return
        lost = (
            f"run {self._record.run}: the state of its flow is {self._state}: {self._message}\n"
            f"resume with: tributary resume {self._record.run}"
        )
        if state.state == "running":
            if not is_running(self._record.run):
                message = f"flow {self._state}: {self._message}"
                failed = state.model_copy(update={"state": "failed", "message": message})
                self._record.put_state(failed)
            raise StageFailed(lost)
        raise StageFailed(state.message or lost)
