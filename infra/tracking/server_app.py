"""MLflow's server behind our key: `mlflow server --app-name tributary-key`.

MLflow's own basic-auth app needs packages that we do not install, keeps users of its own in a
database, and hashes the password again for each request; one key for all needs none of that.
"""

from __future__ import annotations

from http import HTTPStatus

from infra.access import key, listening_host
from infra.guard import Asgi, Guard, Message, Receive, Send

APP = "tributary-key"
_ASSISTANT = "/ajax-api/3.0/mlflow/assistant"
_SETTINGS = ("/config", "/providers")
"""what every page of MLflow reads of it"""


def create_app() -> Asgi:
    """Named in `pyproject.toml` as an app of MLflow's."""
    from mlflow.server.fastapi_app import app

    return Guard(_without_assistant(app), key(), listening_host(), ("/health",))


def _without_assistant(app: Asgi) -> Asgi:
    """Leave MLflow's assistant out: it runs coding agents and a shell on this machine, and reads
    what models wrote into runs."""
    from starlette.responses import PlainTextResponse

    refused = PlainTextResponse("MLflow's assistant is not offered here\n", HTTPStatus.NOT_FOUND)

    async def served(scope: Message, receive: Receive, send: Send) -> None:
        is_asked = scope["type"] == "http" and _ASSISTANT in scope["path"]
        is_read = is_asked and scope["method"] == "GET" and scope["path"].endswith(_SETTINGS)
        await (refused if is_asked and not is_read else app)(scope, receive, send)

    return served
