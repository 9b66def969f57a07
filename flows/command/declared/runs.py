"""Declares the commands of runs under way, of the stack and machine, and of Prefect's page."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from flows.command.app import InProcess, Json, Open, Root, Run, Set, app, console, examples


@app.command(help_epilogue=examples("runs", "runs --limit 5 --json"))
def runs(*, limit: int = 20, json: Json = False) -> int:
    """List this home's runs, the latest first.

    Args:
        limit: How many runs to show.
    """
    from flows.command.runs_command import show_runs

    return show_runs(limit, json, console)


@app.command(
    help_epilogue=examples(
        "label pairs-distill --to pairs.jsonl",
        "label my-run/general-distill --to pairs.jsonl --by ada --open",
    )
)
def label(
    artifact: str = "",
    /,
    *,
    to: str,
    run: str = "",
    by: str = "",
    root: Root = "",
    open_: Open = False,
) -> int:
    """Choose the better of two answers, on a page of this machine, until Ctrl-C.

    Answers are those of a `distill` stage to one problem; nobody sees which model wrote which. Rows
    go to a file that the stages `preference` and `reward` read. A later session goes on.

    Args:
        artifact: A stage, RUN/STAGE, or the beginning of a digest; default: the last with samples.
        to: The file of rows, *.jsonl; another session of the same file goes on where it ended.
        run: A run's id or name; default: the latest.
        by: Who chooses, as the rows say; default: your user's name.
    """
    from flows.reports.labelling import label as serve

    return serve(artifact, run, to, by, root, open_, console)


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
    run: Run = "",
    stage: str = "",
    /,
    *,
    follow: Annotated[bool, Parameter(name=["--follow", "-f"], negative=())] = False,
) -> int:
    """Print the log of a stage's job.

    Args:
        stage: A stage of the run (RUN/STAGE does, too); empty is the one that started last.
        follow: Go on until the stage is over.
    """
    from flows.command.runs_command import show_log

    return show_log(run, stage, follow, console)


@app.command(help_epilogue=examples("cancel", "cancel cpu-demo", "cancel agent-alone --json"))
def cancel(run: Run = "", /, *, json: Json = False) -> int:
    """Stop a run: its stages write a checkpoint and end. `resume` continues it.

    Stages that it shares with another run go on for that one. Exit code 1 if it still runs after
    90 seconds.
    """
    from flows.command.runs_command import cancel_run

    return cancel_run(run, json, console)


@app.command(
    help_epilogue=examples("retry cpu-demo agent-rl", "retry cpu-demo evaluate --in-process")
)
def retry(run: str, stage: str = "", /, *, in_process: InProcess = False) -> int:
    """Do a stage of a run again, and everything that is made from it, in a new run.

    Results of the old run stay as they are. A stage that did not finish goes on from its last
    checkpoint; every other stage is found in the store.

    Args:
        run: A run's id or name, or a recipe's name (its latest run); or RUN/STAGE.
        stage: A stage of the run, e.g. agent-rl.
    """
    from flows.command.runs_command import retry_stage

    return retry_stage(run, stage, in_process, console)


@app.command(
    help_epilogue=examples("replay agent-rl", "replay agent-rl --run cpu-demo --in-process --json")
)
def replay(stage: str, /, *, run: Run = "", in_process: bool = False, json: Json = False) -> int:
    """Train a stage again on the rollouts that it kept, and say whether the weights are the same.

    The stage must have run with `keep_rollouts: true`. No server is needed.

    Args:
        stage: Name of a finished stage, e.g. agent-rl.
        in_process: Train from this process, without the Prefect server.
    """
    from flows.command.runs_command import replay_stage

    return replay_stage(stage, run, in_process, json, console)


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
    from flows.command.stack import clean_records

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


@app.command(help_epilogue=examples("save mine/recipe.yaml", "save cpu-demo longer --set seed=1"))
def save(recipe: str, name: str = "", /, *, set_: Set | None = None) -> int:
    """Save a recipe under a name: commands take it, and the forms of Prefect's page list it.

    What it says now is kept, whatever becomes of its file; one of the same name is replaced.

    Args:
        recipe: A YAML file, or the name of a shipped or saved recipe.
        name: A name for it and its runs; default: the recipe's own.
    """
    from flows.command.recipes import save as save_recipe

    return save_recipe(recipe, name, set_ or [], console)


@app.command(help_epilogue=examples("recipes", "recipes --json", "recipes --remove longer"))
def recipes(*, remove: str = "", json: Json = False) -> int:
    """List the recipes that have a name: shipped ones, and those that `save` saved.

    Args:
        remove: First forget this saved recipe. Its runs and their artifacts stay.
    """
    from flows.command.recipes import show_recipes

    return show_recipes(remove, json, console)


@app.command(
    help_epilogue=examples("notify https://hooks.example.com/T0/B0", "notify", "notify --off")
)
def notify(url: str = "", /, *, off: Annotated[bool, Parameter(negative=())] = False) -> int:
    """Tell someone of each run that fails or crashes, through a webhook.

    Args:
        url: A webhook that takes JSON, e.g. of Slack, Mattermost or Discord; empty shows whether
            one is told.
        off: Tell nobody any more.
    """
    from flows.command.runs_command import show_notify

    return show_notify(url, off, console)
