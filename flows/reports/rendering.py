"""Templates to one self-contained page: style and script inlined, and everything escaped.

What comes from models and users is either HTML that Jinja escapes, or JSON in a data block whose
`<` are written as escapes; the script puts it into the page as text only. Control and direction
characters are shown by their number. The page's policy names its two scripts by their hashes, so a
browser runs nothing else, whatever stands in the page.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from infra.shown_text import is_web_address, shown

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

_TEMPLATES = Path(__file__).parent / "templates"


def render(template: str, **values: Any) -> str:
    """Return a page; `values` are what its template names."""
    return _environment().get_template(template).render(**values)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    made = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finished,
    )
    filters: dict[str, Any] = {
        "data": lambda value: Markup(data_block(value)),
        "seconds": seconds_text,
        "score": lambda value: f"{value:.3f}",
        "percent": lambda value: f"{100 * value:.0f}%",
        "points": lambda value: f"{100 * value:+.1f}",
        "p_value": p_text,
        "unbroken": unbroken,
        "with_code": with_code,
        "trusted": Markup,
        "web_address": lambda url: url if is_web_address(url) else "",
        "inlined": lambda name: Markup((_TEMPLATES / name).read_text()),
        "source": _source,
    }
    made.filters.update(filters)
    return made


def with_code(text: str) -> Markup:
    """Escaped, with what stands between backticks as code."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"`([^`\n]+)`", r"<code>\1</code>", str(escape(shown(text)))))


def unbroken(text: str) -> str:
    """Write the text with spaces at which no line ends: `p <` and its number stay together."""
    spaces = r"(?<=\b[pn]) (?=[<=] )|(?<=\b[pn] [<=]) | (?=points)"
    return re.sub(spaces, "\N{NO-BREAK SPACE}", text)


def _source(name: str) -> Markup:
    """Return what a page's policy calls an inlined script: a browser runs none that is not named
    so.
    """
    from markupsafe import Markup

    digest = hashlib.sha256((_TEMPLATES / name).read_bytes()).digest()
    return Markup(f"'sha256-{base64.b64encode(digest).decode()}'")


def data_block(value: Any) -> str:
    """JSON that may stand inside a script element: ASCII without `<`, `>` and `&`. A number that
    JSON has no word for is text, which JavaScript's `Number` takes: "NaN"."""
    plain = json.loads(json.dumps(value), parse_constant=str)
    text = json.dumps(_as_text(plain), separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _as_text(value: Any) -> Any:
    """Return a value of JSON in which no text steers what stands beside it."""
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, list):
        return [_as_text(each) for each in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {k: _as_text(v) for k, v in cast("dict[str, Any]", value).items()}
    return value


def _finished(value: Any) -> Any:
    """Return what a template writes: no mark of direction in a name turns the scores behind it."""
    from markupsafe import Markup

    return shown(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def seconds_text(seconds: float) -> str:
    """Example: 0.4 s, 32 s, 4 min 5 s, 2 h 10 min"""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def p_text(value: float) -> str:
    """Example: `p = 0.034`, `p < 0.001`"""
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"
