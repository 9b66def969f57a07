"""The pages of runs in a real browser: no errors, nothing from the network, and what is clicked."""

from __future__ import annotations

import json
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from engines.rollout.records.dataset import DistilledRow
from engines.types import Message, Problem
from flows.catalog import plan_of
from flows.command.main import main
from flows.load import load_recipe
from flows.reports.labelling import LabelPage, Labels, comparisons_of
from flows.reports.page import LivePage, page_server, write_page
from flows.reports.report import build_report
from flows.running.new_run import new_run
from flows.running.records import RunRecord, RunState, StageRecord
from infra.access import bearer
from infra.guard import login_link
from infra.home import home
from tasks.durable.launch import log_path
from tests.parts.machine import until
from tests.parts.report_parts import ATTACK, failed_run, finished_run

pytestmark = pytest.mark.unit

MOST_BYTES = 3 * 1024 * 1024
CONTRAST = """() => {
  const lightness = (colour) => {
    const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
    canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map((v) => {
      v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (!/, 0\\)$|transparent/.test(colour)) return colour;
    }
    return "white";
  };
  const texts = "p,li,td,th,h1,h2,h3,h4,button,a,.pill,code,dt,dd,pre,summary,.small";
  return [...document.querySelectorAll(texts)]
    .filter((e) => e.offsetParent && e.textContent.trim() && !e.closest("svg"))
    .map((e) => {
      const both = [lightness(getComputedStyle(e).color), lightness(behind(e))];
      const [a, b] = both.sort((x, y) => y - x);
      return [(a + 0.05) / (b + 0.05), `${e.tagName} ${e.className} ${e.textContent.slice(0, 30)}`];
    }).filter(([ratio]) => ratio < 4.5);
}"""
"""text whose contrast with what is behind it is too low to read"""


@dataclass
class Seen:
    """A browser's page, and what went wrong in it or left it."""

    page: Any
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api")
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("no chromium on this machine")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def browser(chromium: Any) -> Iterator[Any]:
    """Without the pages of earlier tests."""
    yield chromium
    for context in chromium.contexts:
        context.close()


@pytest.fixture(scope="module", autouse=True)
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """Pages by what they are of."""
    scratch = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRIBUTARY_HOME", str(scratch / "home"))
        done = finished_run(scratch, name="first")
        finished_run(scratch, name="second", changes=["experts.agent.path.rl.steps=3"], right=6)
        failed = failed_run(home(), f"stage agent-rl failed: {ATTACK}")
        made = {"done": _written(done), "failed": _written(failed)}
        with pytest.raises(SystemExit) as end:
            main(["compare", "first", "second"])
        assert not end.value.code
        (made["compared"],) = (home() / "reports").glob("compare-*.html")
        yield made


def _written(record: RunRecord) -> Path:
    head = record.head()
    plan = plan_of(head.flow, record.recipe(), head.arguments)
    return write_page(record, build_report(record, plan), plan)


def opened(browser: Any, path: Path, width: int = 1280, scheme: str = "light") -> Seen:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    seen = Seen(page)
    page.on("console", lambda m: seen.errors.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda error: seen.errors.append(str(error)))
    page.on("dialog", lambda dialog: seen.errors.append(f"a script ran: {dialog.message}"))
    page.on("request", lambda r: seen.requests.append(r.url))
    page.goto(path.as_uri())
    return seen


@pytest.mark.parametrize("name", ["done", "failed", "compared"])
def test_a_page_is_whole_in_itself_has_no_errors_and_can_be_read(browser, runs, name):
    assert runs[name].stat().st_size < MOST_BYTES
    seen = opened(browser, runs[name])
    outside = [url for url in seen.requests if url != runs[name].as_uri() and url[:5] != "data:"]
    assert (seen.errors, outside) == ([], [])
    assert seen.page.evaluate(CONTRAST) == []


@pytest.mark.parametrize("name", ["done", "failed", "compared"])
def test_a_page_fits_a_phone_and_can_be_read_in_the_dark(browser, runs, name):
    page = opened(browser, runs[name], width=390, scheme="dark").page
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    cut = """() => {
      const right = (element) => element.getBoundingClientRect().right;
      return [...document.querySelectorAll("header nav a")]
        .filter((link) => right(link) > right(link.parentElement)).map((link) => link.textContent);
    }"""
    assert page.evaluate(cut) == [], "parts of the page that one cannot see are there"
    page.set_viewport_size({"width": 1280, "height": 900})
    assert page.evaluate(CONTRAST) == []


def test_the_score_by_turns_is_drawn_and_read_at_the_pointer(browser, runs):
    """Of six problems, `agent` solves the first five, in 1, 2, 3, 4, 1 turns."""
    page = opened(browser, runs["done"]).page
    chart = page.locator("#scaling .chart")
    assert chart.locator("h4").all_text_contents() == ["score with at most n turns"]
    ticks = chart.locator("svg text[text-anchor=middle], svg text[text-anchor=end]")
    assert ticks.all_text_contents()[-3:] == ["1", "2", "4"]
    svg = chart.locator("svg")
    box = svg.bounding_box()
    svg.hover(position={"x": 46 + (box["width"] - 54) / 2, "y": 60})  # two turns: half way
    told = page.locator("#tip").inner_text()
    assert told.splitlines()[0] == "turns 2"
    assert "agent: 0.5 (" in told


def test_the_outcome_stands_first_with_a_paired_test(browser, runs):
    page = opened(browser, runs["done"]).page
    first = page.locator("main > section").first.inner_text().replace("\N{NO-BREAK SPACE}", " ")
    assert "0.833 on agent." in first
    assert "0.167 → 0.833" in first
    # 4 problems more of 6, none less: McNemar's p is 2 / 2^4
    assert "p = 0.125 (McNemar, n = 6)" in first
    greedy = page.get_by_role("button", name="greedy", exact=True)
    greedy.click()
    assert greedy.get_attribute("aria-pressed") == "true"


def test_the_sample_browser_shows_what_changed_and_finds(browser, runs):
    seen = opened(browser, runs["done"])
    page = seen.page
    items = page.locator("#list button")
    assert items.count() == 8, "four problems, sampled and greedy"
    assert page.locator("#detail h3").all_inner_texts() == [
        "before: agent-sft, sampled", "after: agent, sampled",
    ]  # fmt: skip
    page.get_by_role("button", name="failed or cut off").click()
    assert items.count() == 1
    assert "no verdict" in page.locator("#detail").inner_text()
    page.get_by_role("button", name="all", exact=True).click()
    assert items.count() == 26
    page.locator("#search").fill("agent/a")
    assert items.count() == 1
    page.locator("#detail .tokens span").nth(2).hover()
    tip = page.locator("#tip").inner_text()
    assert '"two" (id 7)' in tip
    assert "trainer - engine: +0.25" in tip
    assert "weight version 2" in tip
    page.locator("#search").fill("nothing like it")
    assert "No sample passes" in page.locator("#detail").inner_text()
    assert seen.errors == []


def test_what_a_model_wrote_stays_text(browser, runs):
    seen = opened(browser, runs["done"])
    seen.page.get_by_role("button", name="worst", exact=True).click()
    assert ATTACK in seen.page.locator("#detail").inner_text()
    failed = opened(browser, runs["failed"])
    assert ATTACK in failed.page.locator("#failure").inner_text()
    for one in (seen, failed):
        assert one.page.locator("img").count() == 0
        assert one.errors == []


def test_charts_tell_a_step_under_the_pointer(browser, runs):
    page = opened(browser, runs["done"]).page
    page.locator(".chart.large svg").hover(position={"x": 400, "y": 60})
    tip = page.locator("#tip").inner_text()
    assert "training samples: 0." in tip
    assert page.locator("#curves .chart").count() == 2


def test_the_theme_can_be_chosen(browser, runs):
    page = opened(browser, runs["done"]).page
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.locator("#theme").click()
    assert page.evaluate(background) == light, "light, as the system has it"
    page.locator("#theme").click()
    assert page.evaluate(background) != light


def test_a_failed_run_shows_cause_log_and_next_command(browser, runs):
    text = opened(browser, runs["failed"]).page.locator("#failure").inner_text()
    assert "stage agent-rl failed" in text
    assert "logs/stages/job-1.log" in text
    assert "step 1: loss=2.5" in text
    assert f"tributary resume {runs['failed'].stem}" in text


def test_different_recipes_are_compared_in_pairs_and_never_averaged(browser, runs):
    page = opened(browser, runs["compared"]).page
    warning = page.locator("#different").inner_text()
    assert "nothing is averaged" in warning
    assert "experts.agent.path.1.rl.steps: 2 -> 3" in warning
    assert page.locator("#mean").count() == 0
    row = page.locator("#pairs tr", has_text="agent").filter(has_text="greedy").last.inner_text()
    assert "0.833" in row
    assert "1.000" in row
    assert "1 / 0" in row


STEP = (
    "step {0}: loss=0.5 outcome_mean={1} entropy=1.5e-01\n"
    "step {0}: eval_outcome_agent={2} eval_stderr_agent=0.1 eval_problems_agent=8\n"
)


@pytest.fixture
def served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[RunRecord, Path, str]]:
    """A run whose stage agent-rl is at step 1, that job's log, and the link to the page."""
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path / "home"))
    record = new_run(load_recipe("cpu-smoke"), "post-train", {}, in_process=True)
    log = log_path("job-live")
    log.parent.mkdir(parents=True)
    log.write_text(STEP.format(1, 0.25, 0.125))
    record.put_stage(
        StageRecord(name="agent-rl", kind="rl", state="running", job="job-live", started=1.0)
    )
    record.put_state(RunState(state="running", started=1.0))
    with running(page_server(LivePage(record, plan_of("post-train", record.recipe(), {})))) as link:
        yield record, log, link


@contextmanager
def running(server: uvicorn.Server) -> Iterator[str]:
    """The link that lets a browser in."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        serving = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        serving.start()
        try:
            yield login_link(f"http://127.0.0.1:{listening.getsockname()[1]}/")
        finally:
            server.should_exit = True
            serving.join(20)


def test_a_served_page_shows_a_run_as_it_grows_and_changes_nothing(browser, served):
    record, log, link = served
    address = link.partition("login/")[0]
    assert httpx.get(address).status_code == 401, "it asks for the key, on loopback too"
    assert httpx.post(address, headers=bearer()).status_code == 405
    for foreign in ({"host": "evil.example"}, {"origin": "http://evil.example"}):
        assert httpx.get(address, headers=bearer() | foreign).status_code == 403
    assert httpx.get(f"{address}../../etc/passwd", headers=bearer()).status_code == 404
    seen = Seen(browser.new_page())
    seen.page.on("pageerror", lambda error: seen.errors.append(str(error)))
    seen.page.goto(link)
    page = seen.page
    assert page.locator("#live").inner_text() == "live"
    chart = page.locator("#curves-agent-rl")
    assert "held out: agent" in chart.inner_text()
    assert page.locator("#curves-agent-rl .large circle").count() == 2
    log.write_text(log.read_text() + STEP.format(2, 0.5, 0.25))
    circles = page.locator("#curves-agent-rl .large circle")
    until(lambda: circles.count() == 4)
    record.put_state(RunState(state="completed", started=1.0, seconds=9.0))
    until(lambda: page.locator(".lead .pill").first.inner_text() == "completed")
    assert seen.errors == []


def test_a_person_chooses_by_keys_and_by_clicks(browser, tmp_path, monkeypatch):
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path / "home"))
    problems = [
        Problem(f"p/{n}", "general", (Message("user", f"{ATTACK} {n}?"),)) for n in range(3)
    ]
    rows = [
        DistilledRow(
            [1], [1], each, (Message("assistant", f"{ATTACK} {text}"),), "m", "9f", 0, 0, {}
        )
        for each in problems
        for text in ("yes", "no")
    ]
    found, _ = comparisons_of(rows)
    to = tmp_path / "pairs.jsonl"
    with running(page_server(LabelPage(found, Labels(to, "ada")).app)) as link:
        assert httpx.get(link.partition("login/")[0]).status_code == 401, "it asks for the key"
        seen = Seen(browser.new_page())
        seen.page.on("pageerror", lambda error: seen.errors.append(str(error)))
        seen.page.goto(link)
        count = seen.page.locator("#count")
        until(lambda: count.inner_text() == "0 of 3")
        assert (
            seen.page.locator("#prompt .said").inner_text() == found[0].problem.messages[0].content
        )
        assert seen.page.evaluate(CONTRAST) == []
        seen.page.keyboard.press("ArrowRight")
        until(lambda: count.inner_text() == "1 of 3")
        seen.page.locator("#left").click()
        until(lambda: count.inner_text() == "2 of 3")
        seen.page.keyboard.press("u")
        until(lambda: count.inner_text() == "1 of 3")
        seen.page.keyboard.press("ArrowLeft")
        until(lambda: count.inner_text() == "2 of 3")
        seen.page.keyboard.press("s")
        until(lambda: "All pairs are done" in seen.page.locator("#prompt").inner_text())
        assert seen.errors == []
    chosen = [json.loads(line)["chosen"][0]["content"] for line in to.read_text().splitlines()]
    assert chosen == [found[0].right.messages[0].content, found[1].left.messages[0].content]
