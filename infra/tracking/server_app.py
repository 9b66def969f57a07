"""MLflow's server behind our key: `mlflow server --app-name tributary-key`.

MLflow's own basic-auth app needs packages that we do not install, keeps users of its own in a
database, and hashes the password again for each request; one key for all needs none of that.
"""

from __future__ import annotations

from infra.access import key, listening_host
from infra.guard import Asgi, Guard

APP = "tributary-key"


def create_app() -> Asgi:
    """Named in `pyproject.toml` as an app of MLflow's."""
    from mlflow.server.fastapi_app import app

    return Guard(app, key(), listening_host(), ("/health",))
