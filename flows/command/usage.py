"""Says what is wrong with the words of a command, and what was meant."""

from __future__ import annotations

import difflib
import shlex
import sys
from collections.abc import Iterator

from cyclopts import (
    CycloptsError,
    MissingArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from flows.command.app import app


def usage_fault(error: CycloptsError) -> str:
    """Return what is wrong with the words of a command, and where it says what it takes."""
    command = " ".join(["tributary", *(error.command_chain or ())])
    if isinstance(error, UnusedCliTokensError):
        words = error.unused_tokens or []
        said = f"`{command}` takes no further words: {shlex.join(words)}"
        if any("=" in word for word in words) and "--set" in sys.argv:
            said += "; each change has a `--set` before it"
    elif isinstance(error, MissingArgumentError) and error.argument and not error.argument.tokens:
        said = f"`{command}` needs {error.argument.name}"
        words = error.unused_tokens or []
        if error.argument.name in words:
            said += " with a value behind it"
        elif words and error.argument.name.startswith("--"):
            said += f"; {shlex.join(words)} stands behind no option"
    elif isinstance(error, UnknownOptionError):
        said = _of_option(error)
    elif isinstance(error, UnknownCommandError):
        said = _of_command(error, command)
    else:
        said = str(error).strip()
        said = said if said.endswith("...") else said.removesuffix(".")
    return f"{said}; see `{command} --help`"


_ALSO_CALLED = {
    "train": "`sft`, `rl` or `run`", "finetune": "`sft`",
    "start": "`run`", "stop": "`cancel`, of a run, or `down`", "eval": "`evaluate`",
    "ls": "`runs` or `artifacts`", "list": "`runs` or `artifacts`",
}  # fmt: skip
"""what people type for a command, and what it is called here"""


def _of_command(error: UnknownCommandError, command: str) -> str:
    """Return which command was meant, or all that there are."""
    word = (error.unused_tokens or [""])[0]
    owner = error.app if error.app is not None else app
    known = [name for name in owner if not name.startswith("-")]
    also = _ALSO_CALLED if owner is app else {}
    near = [name for name in also if name == word.lower()]
    near = near or difflib.get_close_matches(word.lower(), known, 1, 0.7)
    near = near or difflib.get_close_matches(word.lower(), also, 1, 0.8)
    near = near or difflib.get_close_matches(word.lower(), known, 1, 0.6)
    meant = also.get(near[0], f"`{near[0]}`") if near else ""
    hint = f"; did you mean {meant}" if meant else f"; there are {', '.join(sorted(known))}"
    return f"`{command}` has no command `{word}`{hint}"


def _of_option(error: UnknownOptionError) -> str:
    """Return what to write in place of an option that the command has not: a field of its recipe,
    an option that is called nearly so, or another command, which has it."""
    from flows.recipe import Recipe

    option = (error.token.keyword or error.token.value).partition("=")[0]
    name, said = option.lstrip("-"), f"Unknown option: {option}"
    own = [each for argument in error.argument_collection for each in argument.names]
    if "--set" in own and name in Recipe.model_fields:
        return f"{said}; write --set {name}=VALUE"
    if near := difflib.get_close_matches(name, [each.lstrip("-") for each in own], 1, 0.7):
        return f"{said}. Did you mean --{near[0]}?"
    if having := sorted(_commands_with(option)):
        return f"{said}; {', '.join(having[:3])} {'have' if having[1:] else 'has'} it"
    return said


def _commands_with(option: str) -> Iterator[str]:
    waiting = [(name, app[name]) for name in app]
    while waiting:
        called, command = waiting.pop()
        if called.rpartition(" ")[2].startswith("-"):
            continue
        waiting += [(f"{called} {name}", command[name]) for name in command]
        arguments = command.assemble_argument_collection() if command.default_command else ()
        if any(option in argument.names for argument in arguments):
            yield f"`{called}`"
