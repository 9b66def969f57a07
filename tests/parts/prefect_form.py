"""Prefect's page in a real browser: the form of a deployment, filled and submitted by hand."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.parts.machine import network

SHOWN_SECONDS = 60
"""what a page may take to show itself on a busy machine"""
DRAWN_LATER = "ResizeObserver loop completed"
"""What a busy browser says as it leaves a change of size to the next frame: no error of the page.
https://www.w3.org/TR/resize-observer/#deliver-resize-error"""


class Tab:
    """A browser's tab that keeps what its console calls an error, and what it asks of others."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.errors: list[str] = []
        self.refused: list[str] = []
        """requests that were answered with an error, or not at all"""
        self._was_busy = False
        self.clicks = self.filled = 0
        page.set_default_timeout(SHOWN_SECONDS * 1000)
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", self._asked)
        page.on("response", self._answered)
        page.on("requestfailed", lambda request: self._refusal(request, request.failure))

    def open(self, url: str) -> None:
        self.page.goto(url)

    def read(self, script: str, *arguments: Any) -> Any:
        """What a script of the page that is open finds."""
        return self.page.evaluate(script, list(arguments))

    def open_form(self, url: str) -> None:
        self.open(url)
        self.page.get_by_role("button", name="Submit").wait_for()

    def field(self, name: str) -> Any:
        label = self.page.locator(".schema-form-property__label", has_text=re.compile(f"^{name}"))
        return self.page.locator(".schema-form-property").filter(has=label)

    def choose(self, name: str, option: str) -> None:
        self._click(self.field(name).locator(".p-select-button__icon"))
        self._click(self.page.locator(".p-select-option").get_by_text(option, exact=True))

    def fill(self, name: str, text: str) -> None:
        box = self.field(name).locator("textarea")
        self._click(box)
        box.fill(text)
        self.filled += 1

    def submit(self) -> None:
        self._click(self.page.get_by_role("button", name="Submit"))

    def submit_until(self, is_taken: Callable[[], bool]) -> None:
        """Again while Prefect is busy, as a person clicks again; only the first click counts."""
        self.submit()
        deadline = time.monotonic() + SHOWN_SECONDS
        while not is_taken():
            assert time.monotonic() < deadline, f"the form is not taken: {self.errors}"
            self.page.wait_for_timeout(500)
            if self._was_busy:
                self._was_busy = False
                self.errors.clear()  # what a page says of a busy server
                self.page.get_by_role("button", name="Submit").click()

    def wait_for_text(self, text: str) -> None:
        from playwright.sync_api import TimeoutError as Late

        try:
            self.page.get_by_text(text).first.wait_for()
        except Late as late:
            shown = self.page.inner_text("body")[:2000]
            told = f"{self.page.url} shows {shown!r}; refused {self.refused}; {self.errors}"
            raise AssertionError(f"no {text!r}: {told}") from late

    def picture(self, file: Path, *, whole: bool = False) -> None:
        self.page.screenshot(path=file, full_page=whole)

    def _click(self, what: Any) -> None:
        what.click()
        self.clicks += 1

    def _answered(self, response: Any) -> None:
        self._was_busy |= response.status == 503
        if response.status >= 400:
            self._refusal(response.request, response.status)

    def _refusal(self, request: Any, why: object) -> None:
        self.refused.append(f"{request.method} {request.url}: {why}")

    def _heard(self, message: Any) -> None:
        # Prefect's page asks for an icon of a state before it knows the state, and a browser asks
        # for that of the site by itself.
        place = message.location.get("url", "")
        if DRAWN_LATER in message.text:
            return
        if message.type == "error" and not place.endswith(("/favicon.ico", "/undefined.svg")):
            self.errors.append(message.text)

    def _asked(self, request: Any) -> None:
        if not request.url.startswith(("http://127.0.0.1", "data:", "blob:")):
            self.errors.append(f"asks another host: {request.url}")


def chromium() -> str | None:
    return shutil.which("chromium")


@contextmanager
def opened_tab(width: int = 1280, height: int = 900) -> Generator[Tab]:
    """In a browser of its own, which ends here."""
    from playwright.sync_api import sync_playwright

    with network(is_changed=False), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        try:
            yield Tab(browser.new_page(viewport={"width": width, "height": height}))
        finally:
            browser.close()
