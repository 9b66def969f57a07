"""What commands print: for a person on a terminal, plain and whole in a pipe, or as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

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
    """Where the output is no terminal, tables have neither frames nor breaks within a cell.

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
        """What every print ends in, for text that was made otherwise than from a `str`."""
        for piece in super().render(renderable, options):
            yield piece if piece.control else piece._replace(text=shown(piece.text))

    def rule(self, title: TextType = "", **options: Any) -> None:
        title = shown_line(title) if isinstance(title, str) else title
        if self.is_terminal:
            super().rule(Text(title) if isinstance(title, str) else title, **options)
        else:
            self.say(f"-- {title}")

    def say_line(self, text: str) -> None:
        """What somebody else wrote may be in it, and cannot look like a line of ours."""
        self.say(shown_line(text))

    def say(self, text: str, style: str | None = None) -> None:
        """A whole line, as it is."""
        self.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def text_table(header: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> Table:
    """All text is shown as it is: `[x]` in a name or a message is no markup."""
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
