"""MLflow's server behind our key: `mlflow server --app-name tributary-key`.

MLflow's own basic-auth app needs packages that we do not install, keeps users of its own in a
database, and hashes the password again for each request; one key for all needs none of that.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from infra.access import basic_token, key
from infra.errors import InputError

APP = "tributary-key"
_PUBLIC = "/health"

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Asgi = Callable[[Message, Receive, Send], Awaitable[None]]


class Guard:
    """An ASGI app that lets through who knows the key, by basic authentication. Its health is
    public, which tells no more than that it is up."""

    def __init__(self, app: Asgi, key: str) -> None:
        if not key:
            raise InputError("MLflow is not started without a key: run `tributary up`")
        self._app = app
        self._expected = f"Basic {basic_token(key)}".encode()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or scope.get("path") == _PUBLIC or self._knows(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await _refuse(send)
        else:  # a websocket that is never accepted
            await send({"type": "websocket.close", "code": 1008})

    def _knows(self, scope: Message) -> bool:
        given = dict(scope.get("headers", [])).get(b"authorization", b"")
        return hmac.compare_digest(given, self._expected)


async def _refuse(send: Send) -> None:
    text = b"this MLflow asks for its key; see `tributary doctor`\n"
    headers = [
        (b"content-type", b"text/plain"),
        (b"content-length", str(len(text)).encode()),
        (b"www-authenticate", b'Basic realm="MLflow"'),  # a browser asks its user then
    ]
    await send({"type": "http.response.start", "status": 401, "headers": headers})
    await send({"type": "http.response.body", "body": text})


def create_app() -> Asgi:
    """Named in `pyproject.toml` as an app of MLflow's."""
    from mlflow.server.fastapi_app import app

    return Guard(app, key())
