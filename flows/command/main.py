"""The command `tributary`. Each command imports what it needs when it runs, so `--help` is fast."""

from __future__ import annotations

import io
import resource
import sys
import traceback
from typing import Annotated, Literal

from cyclopts import CycloptsError, Parameter, UnusedCliTokensError
from cyclopts.validators import Number

from flows.command.app import Json, Open, Set, app, console, errors, examples, unwrap_help
from flows.command.declared import models, runs, stages
from infra.errors import BAD_INPUT, DETACHED, InputError, TributaryError
from infra.proxies import bypass
from infra.shown_text import show_log_records

DECLARED = (models, runs, stages)
"""modules that add further commands to the app"""


@app.command(help_epilogue=examples("init mine", "init  # in this folder"))
def init(folder: str = ".", /) -> int:
    """Write a recipe, a domain of your own and its tests, ready to train. Overwrites nothing.

    Args:
        folder: Where to write them; made if missing.
    """
    from flows.command.recipes import write_starter

    return write_starter(folder, console)


@app.command(
    help_epilogue=examples(
        "run mine/recipe.yaml",
        "run cpu-demo --set seed=1 --set experts.agent.path.rl.steps=4",
        "run cpu-demo --expert agent --name agent-alone",
        "run cpu-demo --until agent-rl",
        "run cpu-demo --only evaluate --force evaluate",
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
    from_: Annotated[str, Parameter(name="--from")] = "",
    until: str = "",
    only: str = "",
    force: Annotated[list[str] | None, Parameter(negative=())] = None,
    accept_code: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Run a recipe to the end, showing its stages.

    One Ctrl-C detaches and the run continues (with --in-process it stops after a checkpoint); two
    Ctrl-C within two seconds cancel it.

    Args:
        recipe: A YAML file, or the name of a shipped recipe such as cpu-demo.
        expert: Run only the stages and the evaluation of this expert.
        name: Another name for this run.
        in_process: Run in this process, without the Prefect server.
        from_: Begin with this stage; what does not depend on it must be in the store.
        until: End after this stage, and run nothing that it does not need.
        only: Run this stage alone; what it is made from must be in the store.
        force: Run this stage although the store has its result.
        accept_code: Take what an earlier run made with other code of Tributary as it is.
    """
    from flows.command.run import start
    from flows.running.chosen_stages import ChosenStages

    if only and (from_ or until):
        raise InputError("--only says where to begin and to end; leave out --from and --until")
    chosen = ChosenStages(
        from_stage=from_, until_stage=until, only_stage=only, force_stages=force or [],
        accept_code=accept_code,
    )  # fmt: skip
    return start(recipe, set_ or [], expert, chosen, name, in_process, console)


@app.command(
    help_epilogue=examples(
        "rounds cpu-demo --expert agent", "rounds cpu-demo --expert agent --rounds 3"
    )
)
def rounds(
    recipe: str,
    /,
    *,
    expert: str,
    rounds: Annotated[int, Parameter(validator=Number(gte=1, lte=8))] = 1,
    set_: Set | None = None,
    name: str = "",
    in_process: bool = False,
) -> int:
    """Add rounds of self-distillation to one expert, after the newest round of the same settings.

    Each round is judged against the best one so far; @best moves only to a better one. Nothing is
    done while an earlier run adds rounds to this expert, and once `rounds` in the recipe says so.

    Args:
        recipe: A YAML file, or the name of a shipped recipe.
        expert: Which expert; it is trained first if necessary.
        rounds: How many rounds to add, 1 to 8.
        name: Another name for this run.
        in_process: Run in this process, without the Prefect server.
    """
    from flows.command.run import start_rounds

    return start_rounds(recipe, set_ or [], expert, rounds, name, in_process, console)


@app.command(help_epilogue=examples("resume", "resume cpu-demo"))
def resume(run: str = "", /) -> int:
    """Continue a failed, crashed, stopped or cancelled run, or follow one that is still running.

    Finished stages do not run again.

    Args:
        run: A run's id or name, or a recipe's name (its latest run); empty is the latest run.
    """
    from flows.command.run import continue_run

    return continue_run(run, console)


@app.command(
    help_epilogue=examples(
        "check mine/recipe.yaml",
        "check cpu-demo --set 'resources.stages.unified-sft.trainer={dp: 1}'",
        "check cpu-demo --json",
    )
)
def check(recipe: str, /, *, set_: Set | None = None, json: Json = False) -> int:
    """Validate a recipe; print it resolved, with its plan: what is cached, what will run, where.

    Args:
        recipe: A YAML file, or the name of a shipped recipe.
    """
    from flows.command.show import show_check

    return show_check(recipe, set_ or [], json, console)


@app.command(help_epilogue=examples("report --open", "report cpu-demo --json"))
def report(run: str = "", /, *, json: Json = False, open_: Open = False) -> int:
    """Show the scores by model and domain, with times, and write the run's page.

    Args:
        run: A run's id or name, or a recipe's name (its latest run); empty is the latest run.
    """
    from flows.command.show import show_report

    return show_report(run, json, open_, console)


@app.command(help_epilogue=examples("compare seed-0 seed-1 seed-2", "compare grpo gspo --open"))
def compare(*runs: str, json: Json = False, open_: Open = False) -> int:
    """Compare runs: mean and spread of one recipe under several seeds, and paired tests.

    Runs that scored the same held-out problems are compared with the first one problem by problem.
    Scores of different recipes are never averaged.

    Args:
        runs: Ids or names of runs, or names of recipes (the latest run of each).
    """
    from flows.command.compare import show_comparison

    return show_comparison(runs, json, open_, console)


@app.command(
    help_epilogue=examples(
        "preview chats.jsonl --model ./model",
        "preview 'data/*.parquet' --model base --columns messages=chat --json",
        "preview asks.jsonl --kind prompts --model base --columns prompt=ask",
    )
)
def preview(
    *files: str,
    model: str,
    kind: Literal["messages", "prompts", "pairs"] = "messages",
    rows: int = 3,
    read: int = 1000,
    format: Literal["auto", "openai", "sharegpt"] = "auto",
    columns: Annotated[list[str] | None, Parameter(negative=(), consume_multiple=True)] = None,
    root: str = "",
    json: Json = False,
) -> int:
    """Show rows of your own files as a model sees them: tokens, loss mask, bad rows.

    Exit code 1 if no row that was read can be trained on.

    Args:
        files: JSONL, JSON, CSV or Parquet files, or folders of them: paths, patterns or URLs.
        model: A model folder, a digest (or its beginning), or a stage's name in the latest run.
        kind: What a row is: a conversation, a prompt with a reference, or a preference pair.
        rows: How many rows to show.
        read: How many rows to read and count.
        format: How a row holds its messages; auto: what they look like.
        columns: Names of the columns, e.g. messages=chat weight=score.
        root: The store to look in; default: the latest run's.
    """
    from flows.command.models.preview import preview_files

    return preview_files(files, model, kind, rows, read, format, columns or [], root, json, console)


def main(arguments: list[str] | None = None) -> None:
    """Entry point. Exit codes: 0 done, 1 failed, 2 bad input, 130 detached."""
    unwrap_help()
    bypass()
    _dump_no_memory()
    show_log_records()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # it shows text of any row and any model
            stream.reconfigure(errors="backslashreplace")
    try:
        code = app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        errors.say(f"error: {_of_usage(error)}", style="red")
        code = BAD_INPUT
    except TributaryError as error:
        errors.say(f"error: {error}", style="red")
        code = error.exit_code
    except KeyboardInterrupt:
        code = DETACHED
    except Exception:  # a fault of ours, with text in it that anybody may have written
        errors.say(traceback.format_exc().rstrip())
        code = 1
    sys.exit(code if isinstance(code, int) else 0)


def _dump_no_memory() -> None:
    """Neither this process nor what it starts leaves its memory, with the key and secrets, in a
    file when it crashes. 1 byte keeps the machine's handler of dumps from it too; 0 does not."""
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (1 if most else 0, most))


def _of_usage(error: CycloptsError) -> str:
    """What is wrong with the words of a command, and where it says what it takes."""
    command = " ".join(["tributary", *(error.command_chain or ())])
    if isinstance(error, UnusedCliTokensError):
        said = f"`{command}` takes no further words: {' '.join(error.unused_tokens or ())}"
    else:
        said = str(error).strip()
        said = said if said.endswith("...") else said.removesuffix(".")
    return f"{said}; see `{command} --help`"
