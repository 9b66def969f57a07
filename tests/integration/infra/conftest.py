"""What several files share: a server that ends with the last test in this folder, and a sandbox."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from infra.sandbox.python import level
from rewards.code.code_reward import pool
from tests.parts.mlflow_server import MlflowServer


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    made = MlflowServer(tmp_path_factory.mktemp("mlflow"))
    try:
        made.start()
        yield made
    finally:
        made.end(signal.SIGTERM)


@pytest.fixture(scope="module")
def code_sandbox() -> Iterator[None]:
    """Let tests of the reward `code` run where a sandbox holds, and end it after them."""
    if not level().holds:
        pytest.skip("no sandbox holds here")
    yield
    pool(os.getpid(), "confined").close()
    pool.cache_clear()
