"""The report of a run with as many samples as a page holds: its size, the time to write it, and the
time until a browser has it interactive."""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from flows.catalog import plan_of
from flows.reports.page import write_page
from flows.reports.report import build_report
from flows.reports.shown_samples import BUDGET
from tests.parts.report_parts import finished_run
from tests.programs.bench.rows import Row

MOST_BYTES = 3 * 1024 * 1024
SECONDS = 1.0
TIMES = 5
SAMPLES, TOKENS = 2_000, 400


def measure() -> list[Row]:
    """A page full of samples; without chromium only its size and the time to write it."""
    with tempfile.TemporaryDirectory(prefix="tr-report-") as folder:
        os.environ["TRIBUTARY_HOME"] = folder
        record = finished_run(Path(folder), more=SAMPLES, tokens=TOKENS)
        head = record.head()
        plan = plan_of(head.flow, record.recipe(), head.arguments)
        write_page(record, build_report(record, plan), plan)  # imports
        began = time.monotonic()
        page = write_page(record, build_report(record, plan), plan)
        written = time.monotonic() - began
        size = page.stat().st_size
        note = f"{SAMPLES} samples of {TOKENS} tokens kept, {BUDGET / 1e6:.1f} MB of them shown"
        rows = [
            Row("report: size", float(size), "bytes", float(MOST_BYTES), True, note),
            Row("report: time to write the page", written, "s"),
        ]
        chromium = shutil.which("chromium")
        return [*rows, _interactive(page, chromium)] if chromium else rows


def _interactive(page: Path, chromium: str) -> Row:
    """Until its scripts have run, in a new tab each time."""
    from playwright.sync_api import sync_playwright

    ended = "performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        taken: list[float] = []
        for _ in range(TIMES + 1):
            tab = browser.new_page()
            tab.goto(page.as_uri())
            taken.append(tab.evaluate(ended) / 1000)
            tab.close()
        browser.close()
    note = f"{min(taken[1:]):.2f} to {max(taken[1:]):.2f} s, without the browser's own start"
    value = statistics.median(taken[1:])
    return Row("report: time until the page is interactive", value, "s", SECONDS, True, note)
