"""Runs under way: looked at, stopped, repeated."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from flows.command.app import Json, app, console, examples


@app.command(help_epilogue=examples("runs", "runs --limit 5 --json"))
def runs(*, limit: int = 20, json: Json = False) -> int:
    """List this home's runs, the latest first.

    Args:
        limit: How many runs to show.
    """
    from flows.command.runs import show_runs

    return show_runs(limit, json, console)


@app.command(help_epilogue=examples("top", "top --once", "top --json"))
def top(
    *,
    once: Annotated[bool, Parameter(negative=())] = False,
    every: float = 2.0,
    json: Json = False,
) -> int:
    """Watch the stages that run now: progress, time left, tokens/s, servers.

    Ctrl-C ends it, and no run. In a pipe the table is printed once.

    Args:
        once: Print the table once.
        every: Seconds from one look to the next, from 0.5.
    """
    from flows.command.top import show_top

    return show_top(once, every, json, console)


@app.command(help_epilogue=examples("logs", "logs cpu-demo agent-rl --follow"))
def logs(
    run: str = "",
    stage: str = "",
    /,
    *,
    follow: Annotated[bool, Parameter(name=["--follow", "-f"], negative=())] = False,
) -> int:
    """Print the log of a stage's job.

    Args:
        run: A run's id or name, or a recipe's name (its latest run); empty is the latest run.
        stage: A stage of the run; empty is the one that started last.
        follow: Go on until the stage is over.
    """
    from flows.command.logs import show_log

    return show_log(run, stage, follow, console)


@app.command(help_epilogue=examples("cancel", "cancel cpu-demo", "cancel agent-alone --json"))
def cancel(run: str = "", /, *, json: Json = False) -> int:
    """Stop a run: its stages write a checkpoint and end. `resume` continues it.

    Stages that it shares with another run go on for that one. Exit code 1 if it still runs after
    90 seconds.

    Args:
        run: A run's id or name, or a recipe's name (its latest run); empty is the latest run.
    """
    from flows.command.cancel import cancel_run

    return cancel_run(run, json, console)


@app.command(
    help_epilogue=examples("retry cpu-demo agent-rl", "retry cpu-demo evaluate --in-process")
)
def retry(run: str, stage: str, /, *, in_process: bool = False) -> int:
    """Do a stage of a run again, and everything that is made from it, in a new run.

    Results of the old run stay as they are. A stage that did not finish goes on from its last
    checkpoint; every other stage is found in the store.

    Args:
        run: A run's id or name, or a recipe's name (its latest run).
        stage: A stage of the run, e.g. agent-rl.
        in_process: Run in this process, without the Prefect server.
    """
    from flows.command.retry import retry_stage

    return retry_stage(run, stage, in_process, console)


@app.command(
    help_epilogue=examples("replay agent-rl", "replay agent-rl --run cpu-demo --in-process --json")
)
def replay(stage: str, /, *, run: str = "", in_process: bool = False, json: Json = False) -> int:
    """Train a stage again on the rollouts that it kept, and say whether the weights are the same.

    The stage must have run with `keep_rollouts: true`. No server is needed.

    Args:
        stage: Name of a finished stage, e.g. agent-rl.
        run: A run's id or name, or a recipe's name (its latest run); empty is the latest run.
        in_process: Train from this process, without the Prefect server.
    """
    from flows.command.replay import replay_stage

    return replay_stage(stage, run, in_process, json, console)
