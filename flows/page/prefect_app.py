"""Serves Prefect behind our key, and Ray's dashboard on a path below it: `uvicorn --factory
flows.page.prefect_app:create_app`.

Ray's own page keeps its token, our key, in a cookie, which a browser sends to every port of this
machine. So browsers ask here, and the key is added on the way. Ray is asked to show things only:
nothing that runs a command passes.

Prefect's own basic authentication would ask each browser for the key in a form, and keep it where
scripts can read it.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, cast
from urllib.parse import unquote

import httpx

from infra.access import bearer, key, listening_host
from infra.guard import Asgi, Guard, Message, Receive, Send
from infra.stack.record import load_record

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession, AsyncSessionTransaction

SEED = "number of at most 18 digits"
RUN_NAME = "name of small letters, digits and `-`"
FORMATS = {SEED: r"^[0-9]{0,18}$", RUN_NAME: "^[a-z0-9-]*$"}
"""patterns of a form's texts, by what its page says of another text"""
RAY_PAGE = "/ray-dashboard/"
_PAGE = ("static/", "favicon.ico", "speedscope-")
"""paths of what Ray's own page consists of begin like this; all others lead to data"""
_PASSED = ("content-type", "content-encoding", "content-length", "cache-control", "last-modified")
_ONE_MINUTE = 60.0
_ONLY_SHOWN = "405: Ray's page shows things here and changes nothing\n"
_FROM_ELSEWHERE = "403: another page leads to Ray's page here, and not to its data\n"


class RayPage:
    """`url` is that of Ray's dashboard."""

    def __init__(self, url: str) -> None:
        self._http = httpx.AsyncClient(base_url=url, timeout=_ONE_MINUTE, trust_env=False)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        from starlette.responses import PlainTextResponse, StreamingResponse

        if scope["method"] not in ("GET", "HEAD"):
            refusal = PlainTextResponse(_ONLY_SHOWN, 405)
            await cast("Asgi", refusal)(scope, receive, send)
            return
        asked = scope["raw_path"].decode("latin-1").removeprefix(RAY_PAGE)
        if not _is_page(asked) and _is_of_another_page(scope):
            refusal = PlainTextResponse(_FROM_ELSEWHERE, 403)
            await cast("Asgi", refusal)(scope, receive, send)
            return
        query = scope["query_string"].decode("latin-1")
        url = httpx.URL(f"/{asked.lstrip('/')}" + (f"?{query}" if query else ""))
        async with self._http.stream(scope["method"], url, headers=bearer()) as reply:
            headers = {name: reply.headers[name] for name in _PASSED if name in reply.headers}
            headers["x-content-type-options"] = "nosniff"
            if not _is_page(asked):  # a log that looks like a page stays one without scripts
                headers["content-security-policy"] = "sandbox"
            answer = StreamingResponse(reply.aiter_raw(), reply.status_code, headers)
            await cast("Asgi", answer)(scope, receive, send)


def _is_of_another_page(scope: Message) -> bool:
    """Return whether a link of a foreign page led here: some data of Ray's come from a profiler,
    which is attached to a process to get them."""
    sites = [value for name, value in scope["headers"] if name == b"sec-fetch-site"]
    return not all(site in (b"none", b"same-origin") for site in sites)


def _is_page(asked: str) -> bool:
    return not asked or (asked.startswith(_PAGE) and ".." not in unquote(asked))


def with_ray(app: Asgi, ray: RayPage) -> Asgi:
    """The app, with Ray's page below its path."""

    async def chosen(scope: Message, receive: Receive, send: Send) -> None:
        is_ray = scope["type"] == "http" and scope["path"].startswith(RAY_PAGE)
        await (ray if is_ray else app)(scope, receive, send)

    return chosen


def know_formats() -> None:
    """Let Prefect, which checks a form by jsonschema, refuse a text in words."""
    from jsonschema import Draft202012Validator

    for words, pattern in FORMATS.items():
        Draft202012Validator.FORMAT_CHECKER.checks(words)(partial(_fits, re.compile(pattern)))


def _fits(pattern: re.Pattern[str], value: object) -> bool:
    return not isinstance(value, str) or pattern.search(value) is not None


def lock_sqlite_first() -> None:
    """Let each transaction of Prefect's server wait for SQLite's lock before it reads. By default
    most take the lock where they first write; if another one wrote after their first read, they
    fail at once, and a click on the page is answered 503 and lost."""
    from prefect.server.database.configurations import AioSqliteConfiguration

    begin = AioSqliteConfiguration.begin_transaction

    @asynccontextmanager
    async def locked(
        self: AioSqliteConfiguration, session: AsyncSession, with_for_update: bool = False
    ) -> AsyncGenerator[AsyncSessionTransaction]:
        async with begin(self, session, with_for_update=True) as transaction:
            yield transaction

    AioSqliteConfiguration.begin_transaction = locked


def create_app() -> Asgi:
    """Make the app. Its background services start with it."""
    from prefect.server.api.server import create_app as create

    know_formats()
    lock_sqlite_first()
    app = cast("Asgi", create(final=True))
    if stack := load_record():
        app = with_ray(app, RayPage(stack.ray_dashboard))
    return Guard(app, key(), listening_host(), ("/api/health", "/api/ready"))
