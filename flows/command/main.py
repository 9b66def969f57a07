"""The command `tributary`. Each command imports what it needs when it runs, so `--help` is fast."""

from __future__ import annotations

import errno
import gc
import io
import os
import resource
import shlex
import sys
import traceback
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Literal

from cyclopts import (
    CycloptsError,
    Parameter,
)
from cyclopts.validators import Number

from flows.command.app import (
    InProcess,
    Json,
    Open,
    Root,
    Run,
    Set,
    Template,
    app,
    console,
    errors,
    examples,
    unwrap_help,
)
from flows.command.declared import models, runs, stages
from flows.command.usage import usage_fault
from infra.errors import BAD_INPUT, DETACHED, InputError, TributaryError
from infra.processes.network import bypass
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
    in_process: InProcess = False,
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
        recipe: A YAML file, or the name of a shipped or saved recipe such as cpu-demo.
        expert: Run only the stages and the evaluation of this expert.
        name: Another name for this run.
        from_: Begin with this stage; what does not depend on it must be in the store.
        until: End after this stage, and run nothing that it does not need.
        only: Run this stage alone; what it is made from must be in the store.
        force: Run this stage although the store has its result.
        accept_code: Take what an earlier run made with other code of Tributary as it is.
    """
    from flows.command.run_command import start
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
    in_process: InProcess = False,
) -> int:
    """Add rounds of self-distillation to one expert, after the newest round of the same settings.

    Each round is judged against the best one so far; @best moves only to a better one. Nothing is
    done while an earlier run adds rounds to this expert, and once `rounds` in the recipe says so.

    Args:
        recipe: A YAML file, or the name of a shipped or saved recipe.
        expert: Which expert; it is trained first if necessary.
        rounds: How many rounds to add, 1 to 8.
        name: Another name for this run.
    """
    from flows.command.run_command import start_rounds

    return start_rounds(recipe, set_ or [], expert, rounds, name, in_process, console)


@app.command(help_epilogue=examples("resume", "resume cpu-demo"))
def resume(run: Run = "", /) -> int:
    """Continue a failed, crashed, stopped or cancelled run, or follow one that is still running.

    Finished stages do not run again.
    """
    from flows.command.run_command import continue_run

    return continue_run(run, console)


@app.command(
    help_epilogue=examples(
        "check mine/recipe.yaml",
        "check cpu-demo --set 'resources.stages.unified-sft.trainer={dp: 1}'",
        "check cpu-demo --until agent-rl --json",
    )
)
def check(
    recipe: str,
    /,
    *,
    set_: Set | None = None,
    until: str = "",
    full: bool = False,
    json: Json = False,
) -> int:
    """Validate a recipe; print its plan on one screen: what is cached, what will run, where, and
    what it takes; then what to be careful about.

    Args:
        recipe: A YAML file, or the name of a shipped or saved recipe.
        until: End after this stage, as `run --until` does.
        full: Show the resolved recipe, algorithms, every reason to run, memory and room, too.
    """
    from flows.command.show import show_check
    from flows.running.chosen_stages import ChosenStages

    chosen = ChosenStages(until_stage=until)
    return show_check(recipe, set_ or [], chosen, full, json, console)


@app.command(help_epilogue=examples("report --open", "report cpu-demo --json", "report --serve"))
def report(
    run: Run = "",
    /,
    *,
    json: Json = False,
    open_: Open = False,
    serve: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Show the scores by model and domain, with times, and write the run's page.

    Args:
        serve: Serve the page on this machine instead, with curves that grow, until Ctrl-C.
    """
    from flows.command.show import show_report

    return show_report(run, json, open_, serve, console)


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
    kind: Literal["messages", "prompts", "pairs", "documents"] = "messages",
    rows: int = 3,
    read: int = 1000,
    format: Literal["auto", "openai", "sharegpt"] = "auto",
    columns: Annotated[list[str] | None, Parameter(negative=(), consume_multiple=True)] = None,
    instruction: str = "",
    system: str = "",
    pattern: str = "",
    roles: Annotated[list[str] | None, Parameter(negative=(), consume_multiple=True)] = None,
    template: Template = "",
    root: Root = "",
    json: Json = False,
) -> int:
    """Show rows of your own files as a model sees them: tokens, loss mask, bad rows.

    Exit code 1 if no row that was read can be trained on.

    Args:
        files: JSONL, JSON, CSV or Parquet files, or folders of them: paths, patterns or URLs.
        model: An HF folder, ORG/NAME of a hub, a GGUF file, a digest (or its beginning), or a stage
            (of the latest run, or RUN/STAGE).
        kind: What a row is: a conversation, a prompt with a reference, a preference pair, or one
            text.
        rows: How many rows to show.
        read: How many rows to read and count.
        format: How a row holds its messages; auto: what they look like.
        columns: Names of the columns, e.g. messages=chat weight=score.
        instruction: Of prompts: text that follows each, e.g. how to write the answer.
        system: Of prompts: text of a system message, where a row has none.
        pattern: Of prompts: regular expression, what of a reference counts, e.g. '#### (.+)'.
        roles: Of documents that are conversations: whose messages the loss is taken on, e.g.
            assistant tool; all: every token.
    """
    from flows.command.models.preview import ReadAs, preview_files

    of_prompts = {"instruction": instruction, "system": system, "reference_pattern": pattern}
    read_as = ReadAs(kind, format, columns or [], of_prompts, roles or [])
    return preview_files(files, model, template, read_as, rows, read, root, json, console)


def main(arguments: list[str] | None = None) -> None:
    """Entry point. Exit codes: 0 done, 1 failed, 2 bad input, 130 detached."""
    gc.set_threshold(50_000, 10, 10)  # what a command imports stays: nothing to look through often
    unwrap_help()
    bypass()
    _dump_no_memory()
    show_log_records()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # it shows text of any row and any model
            stream.reconfigure(errors="backslashreplace")
    words = sys.argv[1:] if arguments is None else arguments
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    try:
        _require_text(words)
        _require_folder()
        code = app(words, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        errors.say(f"error: {usage_fault(error)}", style="red")
        code = BAD_INPUT
    except TributaryError as error:
        errors.say(f"error: {error}", style="red")
        code = error.exit_code
    except KeyboardInterrupt:
        code = DETACHED
    except Exception as error:  # a fault of ours, with text in it that anybody may have written
        errors.say(_of_disk(error) or traceback.format_exc().rstrip())
        code = 1
    sys.exit(code if isinstance(code, int) else 0)


def _require_text(words: Sequence[str]) -> None:
    """Refuse an empty word. Taken for one that is left out, `cancel "$RUN"` would end the newest
    run where RUN is not set."""
    for before, word in pairwise(["", *words]):
        option = before if before.startswith("--") else ""
        if word.startswith("--") and word.endswith("="):
            option, word = word, ""
        if not word.strip():
            what = f"what follows {option}" if option else "one of its words"
            raise InputError(
                f"`{shlex.join(['tributary', *words])}`: {what} is empty. Is a variable of the"
                " shell not set? Give it, or leave it out"
            )


def _require_folder() -> None:
    """Refuse a shell's folder that was removed, or made anew, since the shell went there."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise InputError(
            "the folder that this shell is in is there no more; go to another with `cd`, or into"
            ' the one of its name with `cd "$PWD"`'
        ) from None


def _of_disk(error: Exception) -> str:
    """Return what is wrong with the disk, if that is the cause; else empty."""
    if not isinstance(error, OSError) or error.errno not in _DISK:
        return ""
    return f"error: {error.filename or 'the disk'}: {error.strerror}; {_DISK[error.errno]}"


_NO_RIGHT = "give a folder that you may write to; TRIBUTARY_HOME says where all that lasts is kept"
_NO_ROOM = "free some room (`tributary artifacts gc`, `tributary clean`), then run this again"
_DISK = {
    errno.EACCES: _NO_RIGHT, errno.EPERM: _NO_RIGHT, errno.EROFS: _NO_RIGHT,
    errno.ENOSPC: _NO_ROOM, errno.EDQUOT: _NO_ROOM,
}  # fmt: skip


def _dump_no_memory() -> None:
    """Neither this process nor what it starts leaves its memory, with the key and secrets, in a
    file when it crashes. 1 byte keeps the machine's handler of dumps from it too; 0 does not."""
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (1 if most else 0, most))
