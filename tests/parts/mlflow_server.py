"""A real MLflow server for tests."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx


class MlflowServer:
    """A real MLflow server that can be killed and started again on its port and its data."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.uri = f"http://127.0.0.1:{port}"
        self.database = folder / "mlflow.db"
        self._log = folder / "log"
        self._command = [
            sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port),
            "--backend-store-uri", f"sqlite:///{self.database}", "--workers", "1",
            "--artifacts-destination", str(folder / "artifacts"), "--serve-artifacts",
        ]  # fmt: skip

    def start(self) -> None:
        env = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, env=env, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + 90
        while not _is_up(self.uri):
            assert self._process.poll() is None, self._log.read_text()[-2000:]
            assert time.monotonic() < deadline, self._log.read_text()[-2000:]
            time.sleep(0.1)

    def end(self, number: signal.Signals) -> None:
        os.killpg(self._process.pid, number)
        self._process.wait(20)


def _is_up(uri: str) -> bool:
    try:
        return httpx.get(f"{uri}/health", timeout=1).is_success
    except httpx.HTTPError:
        return False
