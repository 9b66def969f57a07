"""A real browser that logs in by the printed links, and then opens somebody else's page.

Browsers send cookies to every port of a host. So the page comes from a server on this machine: it
sees our cookie, which is the most that a page and another user of the machine can have together.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from flows.page.prefect_app import RAY_PAGE
from infra.access import key
from infra.stack import Stack
from tests.e2e.stranger import listening
from tests.parts.json_server import serving
from tests.parts.machine import Machine
from tests.parts.prefect_form import Tab, chromium, opened_tab

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(300),
    pytest.mark.skipif(chromium() is None, reason="there is no chromium on this machine"),
]

FREE = ("/api/health", "/api/ready", "/health", "/api/gcs_healthz", "/api/authentication_mode")
"""what everybody may read"""
ASKED = (
    "api/health", "api/deployments/filter", "api/2.0/mlflow/experiments/search?max_results=1",
    "api/jobs/", "ray-dashboard/api/jobs/", "login/x/",
)  # fmt: skip
ATTACK = """async ([ports, paths]) => {
  const ways = [
    {}, {credentials: "include"}, {mode: "no-cors", credentials: "include"},
    {method: "POST", body: "{}", mode: "no-cors", credentials: "include"},
    {method: "POST", body: "{}", credentials: "include",
     headers: {"content-type": "application/json"}},
  ];
  const read = [];
  let sent = 0;
  await Promise.all(ports.map(async (port) => { for (const path of paths) {
    const url = `http://127.0.0.1:${port}/${path}`;
    const all = ways.map(async (way) => {
      sent += 1;
      try {
        const reply = await fetch(url, {...way, signal: AbortSignal.timeout(5000)});
        const text = await reply.text();
        if (reply.type !== "opaque") read.push([url, way.method || "GET", text.slice(0, 80)]);
      } catch {}
    });
    const element = (name) => new Promise((done) => {
      sent += 1;
      const made = document.createElement(name);
      made.onload = made.onerror = done;
      setTimeout(done, 5000);
      made.src = url;
      document.body.append(made);
    });
    await Promise.all([...all, element("script"), element("img"), element("iframe")]);
    sent += 1;
    await new Promise((done) => {
      const socket = new WebSocket(url.replace("http", "ws"), "prefect");
      socket.onopen = () => { read.push([url, "websocket", ""]); done(); };
      socket.onerror = socket.onclose = done;
      setTimeout(done, 5000);
    });
  }}));
  return [sent, read];
}"""
REPLAY = """
import os, socket, sys
port, path, cookie, uid = sys.argv[1:]
if uid:
    os.setuid(int(uid))
lines = [f"GET {path} HTTP/1.1", f"Host: 127.0.0.1:{port}", f"Cookie: {cookie}"]
lines += ["X-Forwarded-For: 127.0.0.1", "Connection: close", "", ""]
with socket.socket() as client:
    client.connect(("127.0.0.1", int(port)))
    client.sendall("\\r\\n".join(lines).encode())
    print(client.recv(64).split()[1].decode())
"""


@dataclass(slots=True)
class Foreign:
    """A server of somebody else's on this machine."""

    port: int = 0
    cookies: list[str] = field(default_factory=list[str])
    """what browsers sent it"""


@contextmanager
def foreign_server() -> Generator[Foreign]:
    seen = Foreign()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.cookies.append(self.headers.get("Cookie", ""))
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>evil</title><body>hello</body>")

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    seen.port = server.server_port
    with serving(server):
        yield seen


def test_the_printed_links_are_all_that_a_browser_needs(machine: Machine, stack: Stack) -> None:
    """No click, no form, no password; and what other pages and servers get of it is nothing."""
    with opened_tab() as tab, foreign_server() as foreign:
        _logs_in(machine, tab)
        before = machine.counts()
        assert _attacks(stack, tab, f"http://127.0.0.1:{foreign.port}/") == []
        assert machine.counts() == before
        _sees_nothing_of_use(machine, foreign)


def _logs_in(machine: Machine, tab: Tab) -> None:
    links = dict(re.findall(r"^(Prefect|MLflow|Ray): (http\S+)$", machine.call("status"), re.M))
    shown = {"Prefect": "Dashboard", "MLflow": "Experiments", "Ray": "Cluster"}
    assert set(links) == set(shown)
    for name, text in shown.items():
        tab.open(links[name])
        tab.wait_for_text(text)
        assert "/login/" not in tab.page.url
    assert RAY_PAGE in tab.page.url
    assert not [error for error in tab.errors if "asks another host" in error]
    assert (tab.clicks, tab.filled) == (0, 0)


def _attacks(stack: Stack, tab: Tab, page: str) -> list[Any]:
    """What the page at this address could read, and every answer but a refusal that it got."""
    statuses: list[tuple[str, str, int]] = []
    ports = sorted(set(listening(stack)))

    def note(response: Any) -> None:
        path = "/" + response.url.partition("//")[2].partition("/")[2]
        if response.status < 400 and path not in FREE and not response.url.startswith(page):
            statuses.append((response.request.method, response.url, response.status))

    tab.open(page)
    tab.page.on("response", note)
    try:
        sent, read = tab.read(ATTACK, ports, ASKED)
    finally:
        tab.page.remove_listener("response", note)
    assert sent >= 30 * len(ports)
    return [*read, *statuses]


def _sees_nothing_of_use(machine: Machine, foreign: Foreign) -> None:
    cookie = next(each for each in foreign.cookies if "tributary-" in each)
    assert key() not in "".join(foreign.cookies)
    paths = {"prefect": "/api/admin/version", "mlflow": "/version"}
    assert _replayed(machine.port("prefect"), paths["prefect"], cookie, "") == 200
    if os.geteuid() == 0:
        for name, path in paths.items():
            assert _replayed(machine.port(name), path, cookie, "65534") == 401


def _replayed(port: int, path: str, cookie: str, uid: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", REPLAY, str(port), path, cookie, uid],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return int(done.stdout)
