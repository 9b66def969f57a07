"""Prefect's and MLflow's records in a real PostgreSQL server, also one that is restarted."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import psycopg2
import pytest

from infra.access import basic, prepare_key
from infra.errors import InfrastructureError
from infra.home import home
from infra.processes.children import ProcessRecord, family, start, terminate, wait_ready
from infra.processes.network import free_ports
from infra.stack.database import VARIABLE, Database, database
from infra.stack.record import Stack, new_stack
from infra.stack.services import services
from infra.tracking.rest import MlflowRest

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(shutil.which("initdb") is None, reason="PostgreSQL's initdb is not in PATH"),
]

PASSWORD = "planted/p@ss:5c1e"
_START_S = 120.0


class Postgres:
    """A cluster of its own on loopback, asked for its password. It refuses to run as root."""

    def __init__(self, folder: Path) -> None:
        self._folder, (self.port,) = folder, free_ports(1)
        self._user = "postgres" if os.geteuid() == 0 else None
        if self._user:
            shutil.chown(folder, self._user)
        secret = folder / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        options = ["-U", "ann", "-A", "scram-sha-256", "--no-sync", f"--pwfile={secret}"]
        self._call("initdb", "-D", str(folder / "data"), *options)

    def start(self) -> None:
        options = f"-p {self.port} -h 127.0.0.1 -k {self._folder} -F"
        log = str(self._folder / "log")
        self._call(
            "pg_ctl", "-w", "-D", str(self._folder / "data"), "-o", options, "-l", log, "start"
        )

    def stop(self) -> None:
        self._call("pg_ctl", "-w", "-D", str(self._folder / "data"), "-m", "immediate", "stop")

    def rows(self, name: str, query: str) -> int:
        connection = psycopg2.connect(
            host="127.0.0.1", port=self.port, user="ann", password=PASSWORD, dbname=name
        )
        try:
            with connection.cursor() as cursor:
                cursor.execute(query)
                (found,) = cursor.fetchone() or (0,)
                return int(found)
        finally:
            connection.close()

    def _call(self, *command: str) -> None:
        # Not captured: the server that pg_ctl starts would hold the pipe open.
        subprocess.run(
            command, user=self._user, cwd="/", check=True, timeout=60,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    folder = Path(tempfile.mkdtemp(prefix="tr-pg-"))
    server = Postgres(folder)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def records(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Prefect's and MLflow's servers as the stack starts them, on this database."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRIBUTARY_HOME", str(tmp_path_factory.mktemp("home")))
        address = Database("ann", PASSWORD, "127.0.0.1", postgres.port, "lab").shown
        patch.setenv(VARIABLE, address.replace("ann", "ann:planted%2Fp%40ss%3A5c1e", 1))
        stack = new_stack(None)
        chosen = database()
        assert chosen is not None
        chosen.prepare()
        prepare_key(in_use=False)
        try:
            with ThreadPoolExecutor() as pool:
                stack.services.update(
                    pool.map(lambda s: _started(stack, s), ("prefect-server", "mlflow"))
                )
            yield stack
        finally:
            terminate(family(stack.services.values(), stack.mark), 8)


def _started(stack: Stack, name: str) -> tuple[str, ProcessRecord]:
    service = next(s for s in services(stack) if s.name == name)
    log = Path(service.env["TRIBUTARY_HOME"]) / f"{name}.log"
    record = start(service.command, service.env, log, log.parent)
    wait_ready(name, record, service.answers, _START_S)
    return name, record


def test_what_prefect_and_mlflow_are_told_is_in_the_database(
    postgres: Postgres, records: Stack
) -> None:
    made = httpx.post(
        f"{records.prefect_api}/work_pools/",
        json={"name": "of-test", "type": "process"},
        headers=basic(),
    )
    made.raise_for_status()
    MlflowRest(records.mlflow_uri).experiment("of-test")
    assert (
        postgres.rows("lab_prefect", "select count(*) from work_pool where name = 'of-test'") == 1
    )
    assert (
        postgres.rows("lab_mlflow", "select count(*) from experiments where name = 'of-test'") == 1
    )


def test_making_the_databases_again_changes_nothing(postgres: Postgres, records: Stack) -> None:
    before = postgres.rows("lab_mlflow", "select count(*) from experiments")
    chosen = database()
    assert chosen is not None
    chosen.prepare()
    assert postgres.rows("lab_mlflow", "select count(*) from experiments") == before


def test_the_password_is_in_no_argument_and_no_log(records: Stack) -> None:
    processes = family(records.services.values(), records.mark)
    assert len(processes) >= 2
    said = [" ".join(_arguments(process)) for process in processes]
    said += [record.log.read_text() for record in records.services.values()]
    said.append(records.model_dump_json())
    settings = httpx.get(f"{records.prefect_api}/admin/settings", headers=basic(), timeout=30)
    assert "connection_url" in settings.text
    said.append(settings.text)
    files = [file for file in home().rglob("*") if file.is_file()]
    said += [file.read_bytes().decode(errors="replace") for file in files]
    for secret in (PASSWORD, "planted%2Fp%40ss%3A5c1e"):
        assert not any(secret in text for text in said)


def test_an_encrypted_connection_is_asked_for_by_the_environment(
    records: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This server has no certificate, so both clients give up."""
    monkeypatch.setenv("PGSSLMODE", "require")
    chosen = database()
    assert chosen is not None
    with pytest.raises(InfrastructureError, match="does not support SSL"):
        chosen.prepare()
    for service in services(records):
        if service.name != "ray":
            assert service.env["PGSSLMODE"] == "require"
    url = chosen.prefect_env()["PREFECT_SERVER_DATABASE_CONNECTION_URL"]
    program = (
        "import asyncio, os, sqlalchemy.ext.asyncio as s\n"
        "async def main():\n"
        "    async with s.create_async_engine(os.environ['URL']).connect(): pass\n"
        "asyncio.run(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | {"URL": url}, capture_output=True,
        text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert "rejected SSL upgrade" in done.stderr


def test_both_go_on_when_the_database_is_back(postgres: Postgres, records: Stack) -> None:
    """Killed as by a loss of power, and started again."""
    postgres.stop()
    postgres.start()
    deadline = time.monotonic() + 60
    told: set[str] = set()
    while told != {"prefect", "mlflow"} and time.monotonic() < deadline:
        told = _answering(records)
        time.sleep(0.5)
    assert told == {"prefect", "mlflow"}
    assert all(psutil.pid_exists(record.pid) for record in records.services.values())


def _answering(records: Stack) -> set[str]:
    """Which server reads its records."""
    told = set[str]()
    pools = httpx.get(f"{records.prefect_api}/work_pools/of-test", timeout=30, headers=basic())
    if pools.status_code == 200:
        told.add("prefect")
    found = httpx.get(
        f"{records.mlflow_uri}/api/2.0/mlflow/experiments/get-by-name",
        params={"experiment_name": "of-test"},
        timeout=30,
        headers=basic(),
    )
    if found.status_code == 200:
        told.add("mlflow")
    return told


def _arguments(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
