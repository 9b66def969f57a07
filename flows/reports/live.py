"""Serves the page of a run on this machine, made anew whenever the run has changed.

It shows and changes nothing, and asks for the home's key as every server does.
"""

from __future__ import annotations

import asyncio
import hashlib
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flows.plan import PlannedStage
from flows.reports.page import page
from flows.reports.report import build_report
from flows.running.records import RunRecord
from infra.access import LOOPBACK, required_key
from infra.errors import TributaryError
from infra.guard import Asgi, Guard, Message, Receive, Send, login_link
from tasks.durable.launch import log_path

if TYPE_CHECKING:
    import uvicorn


@dataclass(slots=True)
class LivePage:
    """The app behind the key; keeps the newest page, as several browsers may ask for it."""

    record: RunRecord
    plan: Sequence[PlannedStage]
    _version: str = ""
    _page: str = ""

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        status, kind, text = await asyncio.to_thread(self._answer, scope)
        headers = {
            "content-type": f"{kind}; charset=utf-8",
            "cache-control": "no-store",
            "x-content-type-options": "nosniff",
        }
        named = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": named})
        await send({"type": "http.response.body", "body": text.encode(errors="replace")})

    def _answer(self, scope: Message) -> tuple[int, str, str]:
        """-> status, type, content."""
        if scope["type"] != "http" or scope["method"] != "GET":
            return 405, "text/plain", "405: this page shows a run and changes nothing\n"
        try:
            match scope["path"]:
                case "/":
                    return 200, "text/html", self._newest()
                case "/version":
                    return 200, "text/plain", self.version()
                case _:
                    return 404, "text/plain", "404: there is one page here, /\n"
        except TributaryError as error:  # its store is out of reach for a moment
            return 503, "text/plain", f"503: {error}\n"

    def version(self) -> str:
        """Another one whenever there is more to show."""
        stages = self.record.stages().values()
        said = [self.record.state().model_dump_json(), *(s.model_dump_json() for s in stages)]
        logs = [log_path(s.job) for s in stages if s.job and not s.is_done]
        said += [str(log.stat().st_size) for log in logs if log.is_file()]
        return hashlib.sha256("\n".join(said).encode()).hexdigest()[:16]

    def _newest(self) -> str:
        version = self.version()
        if version != self._version:
            report = build_report(self.record, self.plan)
            self._page, self._version = page(self.record, report, self.plan, version), version
        return self._page


def page_server(app: Asgi) -> uvicorn.Server:
    """Puts an app behind the home's key; runs on whatever sockets it is given."""
    from uvicorn import Config, Server

    from infra.processes.http_heads import BoundedHeads

    guarded = Guard(app, required_key(), LOOPBACK, ())
    return Server(
        Config(guarded, log_level="warning", access_log=False, lifespan="off", http=BoundedHeads)
    )


def serve_page(app: Asgi, told: Callable[[str], None]) -> None:
    """Serve an app on this machine until Ctrl-C. `told` gets the link that lets a browser in."""
    server = page_server(app)
    with socket.socket() as listening:
        listening.bind((LOOPBACK, 0))
        listening.listen()  # a browser that comes before the server waits for it
        told(login_link(f"http://{LOOPBACK}:{listening.getsockname()[1]}/"))
        server.run(sockets=[listening])
