"""Servers that several files share; each ends with the last test in this folder."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.parts.mlflow_server import MlflowServer


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    made = MlflowServer(tmp_path_factory.mktemp("mlflow"))
    try:
        made.start()
        yield made
    finally:
        made.end(signal.SIGTERM)
