"""The stack and the machine below it."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from flows.command.app import Json, app, console, examples


@app.command(
    help_epilogue=examples(
        "up",
        "up  # again: restarts what has died",
        "up --concurrent-runs 2",
        "up --join 10.0.0.1:20123  # work for the stack there",
    )
)
def up(
    *,
    concurrent_runs: Annotated[int | None, Parameter(validator=Number(gte=0))] = None,
    join: str = "",
) -> int:
    """Start the local stack, or restart its dead parts.

    Args:
        concurrent_runs: How many runs go on at once; others wait for their turn. 0: any number.
            Stays until it is set again.
        join: HOST:PORT of the Ray head of another host's stack, for which this host is to work; its
            key is read from TRIBUTARY_KEY. `tributary status` shows the address there.
    """
    from flows.command.stack import join_stack, start_stack

    if join:
        return join_stack(join, console)
    return start_stack(concurrent_runs, console)


@app.command(help_epilogue=examples("down"))
def down() -> int:
    """Stop the local stack."""
    from flows.command.stack import stop_stack

    return stop_stack(console)


@app.command(help_epilogue=examples("status", "status --json"))
def status(*, json: Json = False) -> int:
    """Show which parts of the local stack run, and their addresses.

    Exit code 1 when one is down.
    """
    from flows.command.stack import show_status

    return show_status(json, console)


@app.command(help_epilogue=examples("secret my-store AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY"))
def secret(block: str, /, *variables: str) -> int:
    """Save variables of your environment in a Prefect Secret block, for `storage.credentials`.

    Args:
        block: Name of the block; an existing block of that name is replaced.
        variables: Names of the variables, e.g. AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY.
    """
    from flows.command.stack import keep_secret

    return keep_secret(block, variables, console)


@app.command(help_epilogue=examples("doctor", "doctor --clean", "doctor --json"))
def doctor(*, clean: bool = False, json: Json = False) -> int:
    """List what is missing on this machine, with the command that repairs it.

    Exit code 1 if anything is missing.

    Args:
        clean: First remove what a crash of the machine left in this home. Files of live processes
            stay.
    """
    from flows.command.stack import clean_up, show_doctor

    return show_doctor(clean_up() if clean else None, json, console)


@app.command(help_epilogue=examples("clean", "clean --days 30 --yes"))
def clean(*, days: int | None = None, yes: bool = False, json: Json = False) -> int:
    """Show what of runs that ended long ago takes room in this home's records, or remove it.

    Curves in MLflow are thinned to 100 points; their last values stay, and so do runs, models,
    artifacts and reports. Logs that nobody wrote to for as long are removed, and the files of
    MLflow's and Prefect's databases get smaller by what removed rows left.

    Args:
        days: How long ago; TRIBUTARY_KEEP_DAYS, or 90, if it is left out.
        yes: Remove it.
    """
    from flows.command.clean import clean_records

    return clean_records(days, yes, json, console)


@app.command(
    help_epilogue=examples(
        "completion bash > ~/.bash_completion.d/tributary",
        "completion zsh > ~/.zfunc/_tributary",
    )
)
def completion(shell: Literal["bash", "zsh", "fish"], /) -> int:
    """Print a script that completes commands and options in a shell.

    Args:
        shell: Which shell.
    """
    print(app.generate_completion(prog_name="tributary", shell=shell))
    return 0
