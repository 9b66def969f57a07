"""Prefect's server behind our key: `uvicorn --factory flows.page.server_app:create_app`.

Prefect's own basic authentication would ask each browser for the key in a form, and keep it where
scripts can read it.
"""

from __future__ import annotations

from typing import cast

from flows.page.ray_page import RayPage, with_ray
from infra.access import key, listening_host
from infra.guard import Asgi, Guard
from infra.stack.record import load_record


def create_app() -> Asgi:
    """Its background services start with it."""
    from prefect.server.api.server import create_app as create

    app = cast("Asgi", create(final=True))
    if stack := load_record():
        app = with_ray(app, RayPage(stack.ray_dashboard))
    return Guard(app, key(), listening_host(), ("/api/health", "/api/ready"))
