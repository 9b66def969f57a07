"""The command `tributary`. Each command imports what it needs when it runs, so `--help` is fast."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

from cyclopts import App, CycloptsError, Parameter
from rich.console import Console

from infra.errors import BAD_INPUT, DETACHED, TributaryError

app = App(
    name="tributary",
    help="The whole post-training recipe of a language model as one durable pipeline.",
    version_flags=["--version"],
    help_format="plaintext",
)
console = Console()
errors = Console(stderr=True)

Set = Annotated[
    list[str],
    Parameter(name="--set", negative=(), help="change a field, e.g. experts.agent.path.rl.steps=4"),
]
Open = Annotated[bool, Parameter(name="--open", negative=())]
Addresses = Annotated[list[str], Parameter(negative=(), consume_multiple=True)]
Way = Literal["auto", "broadcast", "disk"]


def examples(*lines: str) -> str:
    """What stands below a command's options."""
    return "\n".join(["Examples:", *(f"  tributary {line}" for line in lines)])


@app.command(help_epilogue=examples("init mine", "init  # in this folder"))
def init(folder: str = ".", /) -> int:
    """Write a recipe, a domain of your own and its tests, ready to train. Overwrites nothing.

    Args:
        folder: Where to write them; made if missing.
    """
    from flows.command.init import write_starter

    return write_starter(folder, console)


@app.command(
    help_epilogue=examples(
        "run mine/recipe.yaml",
        "run cpu-demo --set seed=1 --set experts.agent.path.rl.steps=4",
        "run cpu-demo --expert agent --name agent-alone",
    )
)
def run(
    recipe: str,
    /,
    *,
    set_: Set | None = None,
    expert: str = "",
    name: str = "",
    in_process: bool = False,
) -> int:
    """Run a recipe to the end, showing its stages.

    One Ctrl-C detaches and the run continues (with --in-process it stops after a checkpoint); two
    Ctrl-C within two seconds cancel it.

    Args:
        recipe: A YAML file, or the name of a shipped recipe such as cpu-demo.
        expert: Run only the stages and the evaluation of this expert.
        name: Another name for this run.
        in_process: Run in this process, without the Prefect server.
    """
    from flows.command.run import start

    return start(recipe, set_ or [], expert, name, in_process, console)


@app.command
def resume(run: str = "", /) -> int:
    """Continue a failed, crashed, stopped or cancelled run, or follow one that is still running.

    Finished stages do not run again.

    Args:
        run: A run's id or name, or a recipe's name (its latest run); empty is the latest run.
    """
    from flows.command.run import continue_run

    return continue_run(run, console)


@app.command
def replay(stage: str, /, *, run: str = "", in_process: bool = False) -> int:
    """Train a stage again on the rollouts that it kept, and say whether the weights are the same.

    The stage must have run with `keep_rollouts: true`. No server is needed.

    Args:
        stage: Name of a finished stage, e.g. agent-rl.
        run: A run's id or name, or a recipe's name (its latest run); empty is the latest run.
        in_process: Train from this process, without the Prefect server.
    """
    from flows.command.replay import replay_stage

    return replay_stage(stage, run, in_process, console)


@app.command(
    help_epilogue=examples(
        "check mine/recipe.yaml",
        "check cpu-demo --set 'resources.stages.unified-sft.trainer={dp: 1}'",
    )
)
def check(recipe: str, /, *, set_: Set | None = None) -> int:
    """Validate a recipe; print it resolved, with its plan: what is cached, what will run, where.

    Args:
        recipe: A YAML file, or the name of a shipped recipe.
    """
    from flows.command.show import show_check

    return show_check(recipe, set_ or [], console)


@app.command
def runs(*, limit: int = 20, json: bool = False) -> int:
    """List this home's runs, the latest first.

    Args:
        limit: How many runs to show.
        json: Print JSON.
    """
    from flows.command.runs import show_runs

    return show_runs(limit, json, console)


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


@app.command(help_epilogue=examples("report --open", "report cpu-demo --json"))
def report(run: str = "", /, *, json: bool = False, open_: Open = False) -> int:
    """Show the scores by model and domain, with times, and write the run's page.

    Args:
        run: A run's id or name, or a recipe's name (its latest run); empty is the latest run.
        json: Print JSON, and write no page.
        open_: Open the page in a browser.
    """
    from flows.command.show import show_report

    return show_report(run, json, open_, console)


@app.command(help_epilogue=examples("compare seed-0 seed-1 seed-2", "compare grpo gspo --open"))
def compare(*runs: str, json: bool = False, open_: Open = False) -> int:
    """Compare runs: mean and spread of one recipe under several seeds, and paired tests.

    Runs that scored the same held-out problems are compared with the first one problem by problem.
    Scores of different recipes are never averaged.

    Args:
        runs: Ids or names of runs, or names of recipes (the latest run of each).
        json: Print JSON, and write no page.
        open_: Open the comparison as a page in a browser.
    """
    from flows.command.compare import show_comparison

    return show_comparison(runs, json, open_, console)


@app.command
def artifacts(*, json: bool = False, root: str = "") -> int:
    """List the artifacts in the store.

    Args:
        json: Print JSON.
        root: The store to look in, e.g. s3://bucket/prefix; default: the latest run's.
    """
    from flows.command.show import show_artifacts

    return show_artifacts(json, root, console)


@app.command
def rollouts(artifact: str, /, *, limit: int = 10, domain: str = "", root: str = "") -> int:
    """Browse an artifact's samples: tokens, what was trained on, reward and its reason.

    Args:
        artifact: A digest (or its beginning) or a stage's name in the latest run.
        limit: How many samples to show.
        domain: Show only samples of this domain.
        root: The store to look in; default: the latest run's.
    """
    from flows.command.rollouts import show_rollouts

    return show_rollouts(artifact, limit, domain, root, console)


@app.command
def preview(
    *files: str,
    model: str,
    rows: int = 3,
    read: int = 1000,
    format: Literal["auto", "openai", "sharegpt"] = "auto",
    columns: Annotated[list[str] | None, Parameter(negative=(), consume_multiple=True)] = None,
    root: str = "",
) -> int:
    """Show rows of your own files as a model is trained on them: tokens, loss mask, bad rows.

    Exit code 1 if no row that was read can be trained on.

    Args:
        files: JSONL or Parquet files of messages: paths, patterns or fsspec URLs.
        model: A model folder, a digest (or its beginning), or a stage's name in the latest run.
        rows: How many rows to show.
        read: How many rows to read and count.
        format: How a row holds its messages; auto: what they look like.
        columns: Names of the columns, e.g. messages=chat weight=score.
        root: The store to look in; default: the latest run's.
    """
    from flows.command.preview import preview_files

    return preview_files(files, model, rows, read, format, columns or [], root, console)


@app.command
def publish(model: str, /, *, to: Addresses, by: Way = "auto", root: str = "") -> int:
    """Push a model's weights to running SGLang servers of others, all or none.

    Their key, if they ask for one, comes from the environment variable EXTERNAL_FLEET_KEY.

    Args:
        model: A model folder, a digest (or its beginning), or a stage's name in the latest run.
        to: Addresses of servers, or of a router that knows them: http://HOST:PORT
        by: How weights travel. auto: broadcast, and disk where that does not work. disk: the
            servers read the folder themselves, under this very path.
        root: The store to look in; default: the latest run's.
    """
    from flows.command.publish import publish_model

    return publish_model(model, to, by, root, console)


@app.command(name="test-hook")
def check_hook(
    path: str,
    /,
    *,
    kind: str = "",
    options: str = "",
    needs: str = "spread",
    domains: str = "a,b",
    curriculum: str = "reasoning",
) -> int:
    """Test a part of your own by itself against its contract.

    Args:
        path: `module:attribute`, or `file.py:attribute`.
        kind: advantage, loss, data-source, group-filter, buffer, driver, curriculum or reward;
            default: from a class's methods, or from the type of a function's argument.
        options: Its options as JSON.
        needs: What an advantage needs, as a recipe says it: spread, batch, critic, teachers,
            reference.
        domains: The domains that a data source picks from.
        curriculum: Whose problems and demonstrations a driver or a reward is tried on.
    """
    from flows.command.hooks import show_hook

    return show_hook(path, kind, options, needs, domains, curriculum, console)


@app.command
def up() -> int:
    """Start the local stack, or restart its dead parts."""
    from flows.command.stack import start_stack

    return start_stack(console)


@app.command
def down() -> int:
    """Stop the local stack."""
    from flows.command.stack import stop_stack

    return stop_stack(console)


@app.command
def status() -> int:
    """Show which parts of the local stack run, and their addresses."""
    from flows.command.stack import show_status

    return show_status(console)


@app.command
def secret(block: str, /, *variables: str) -> int:
    """Save variables of your environment in a Prefect Secret block, for `storage.credentials`.

    Args:
        block: Name of the block; an existing block of that name is replaced.
        variables: Names of the variables, e.g. AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY.
    """
    from flows.command.stack import keep_secret

    return keep_secret(block, variables, console)


@app.command
def doctor(*, clean: bool = False) -> int:
    """List what is missing on this machine, with the command that repairs it.

    Args:
        clean: First remove what a crash of the machine left in this home. Files of live processes
            stay.
    """
    from flows.command.stack import show_cleaned, show_doctor

    if clean:
        show_cleaned(console)
    return show_doctor(console)


def main(arguments: list[str] | None = None) -> None:
    """Entry point. Exit codes: 0 done, 1 failed, 2 bad input, 130 detached."""
    try:
        code = app(arguments, exit_on_error=False, print_error=True, result_action="return_value")
    except CycloptsError:  # already printed
        code = BAD_INPUT
    except TributaryError as error:
        errors.print(f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        code = error.exit_code
    except KeyboardInterrupt:
        code = DETACHED
    sys.exit(code if isinstance(code, int) else 0)
