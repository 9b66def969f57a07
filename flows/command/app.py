"""The command's app, its consoles, and options that several commands have."""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import FunctionType
from typing import Annotated, Any

from cyclopts import App, Parameter, Token, convert

from flows.command.output import CommandConsole

_NUMBERS: dict[type[Any], str] = {int: "a whole number", float: "a number"}


def _read(hint: type[Any], tokens: Sequence[Token]) -> Any:
    """The value of an option. Cyclopts by itself rounds 2.5 where a whole number is asked for."""
    for token in tokens if hint in _NUMBERS else ():
        try:
            hint(token.value)
        except ValueError:
            raise ValueError(f"{token.value} is not {_NUMBERS[hint]}") from None
    return convert(hint, tokens)


app = App(
    name="tributary",
    default_parameter=Parameter(converter=_read),
    help="The whole post-training recipe of a language model as one durable pipeline.",
    version_flags=["--version"],
    help_format="plaintext",
)
artifacts_app = App(
    name="artifacts",
    help_format="plaintext",
    help_epilogue="""Examples:
  tributary artifacts
  tributary artifacts --run cpu-demo --kind rl
  tributary artifacts --root s3://bucket/store --json
  tributary artifacts gc""",
)
app.command(artifacts_app)
fleet_app = App(
    name="fleet",
    help="Fleets of servers that serve without training, as a file says.",
    help_format="plaintext",
    help_epilogue="""Examples:
  tributary fleet up topology.yaml
  tributary fleet check topology.yaml""",
)
app.command(fleet_app)
sessions_app = App(
    name="sessions",
    help_format="plaintext",
    help_epilogue="""Examples:
  tributary sessions diff
  tributary sessions diff agent-rl --step 5:9
  tributary sessions diff --limit 1 --json""",
)
app.command(sessions_app)
console = CommandConsole(emoji=False)
errors = CommandConsole(stderr=True, emoji=False)

Set = Annotated[
    list[str],
    Parameter(name="--set", negative=(), help="change a field, e.g. experts.agent.path.rl.steps=4"),
]
Json = Annotated[bool, Parameter(name="--json", negative=(), help="Print JSON.")]

Open = Annotated[bool, Parameter(name="--open", negative=(), help="Open the page in a browser.")]


def examples(*lines: str) -> str:
    """What stands below a command's options."""
    return "\n".join(["Examples:", *(f"  tributary {line}" for line in lines)])


def unwrap_help() -> None:
    """Join the lines of each command's docstring: the terminal's width breaks them anew."""
    for owner in (app, artifacts_app, fleet_app, sessions_app):
        for name in owner:
            function = owner[name].default_command
            if isinstance(function, FunctionType) and function.__doc__:
                function.__doc__ = unwrapped(function.__doc__)


def unwrapped(docstring: str) -> str:
    """A paragraph, or what is said of an argument, is one line."""
    lines: list[str] = []
    for line in docstring.splitlines():
        text = line.strip()
        begins = not text or not lines or not lines[-1].strip() or _BEGINS.match(line)
        if begins or _HEADER.match(lines[-1]):
            lines.append(line)
        else:
            lines[-1] += f" {text}"
    return "\n".join(lines)


_HEADER = re.compile(r" *Args:$")
_BEGINS = re.compile(r" {8}\w+: ")
"""an argument's line, in our docstrings"""
