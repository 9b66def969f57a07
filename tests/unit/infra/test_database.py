"""The address of a database: what is read from it, what is refused, and what is never shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.errors import InfrastructureError, InputError
from infra.processes.network import free_ports
from infra.stack import up
from infra.stack.database import VARIABLE, database, mlflow_env
from infra.stack.record import new_stack, save_record
from infra.stack.services import services

pytestmark = pytest.mark.unit

ADDRESS = "postgresql://ann:p%40ss%2Fword@db.example:6000/lab"


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path))
    monkeypatch.setenv(VARIABLE, ADDRESS)


def test_each_server_gets_a_database_of_its_own() -> None:
    chosen = database()
    assert chosen is not None
    assert chosen.prefect_env() == {
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": (
            "postgresql+asyncpg://ann:p%40ss%2Fword@db.example:6000/lab_prefect"
        )
    }
    assert chosen.mlflow_env() == {
        "MLFLOW_BACKEND_STORE_URI": (
            "postgresql+psycopg2://ann:p%40ss%2Fword@db.example:6000/lab_mlflow"
        )
    }


def test_the_record_of_a_stack_names_it_without_its_password() -> None:
    assert new_stack(None).database == "postgresql://ann@db.example:6000/lab"


def test_only_the_servers_that_need_it_get_its_password(tmp_path: Path) -> None:
    stack = new_stack(None)
    with_it = {s.name for s in services(stack) if any("ss%2Fword" in v for v in s.env.values())}
    assert with_it == {"prefect-server", "mlflow"}
    for service in services(stack):
        assert not [part for part in service.command if "word" in part], service.name
    save_record(stack)
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert files
    assert not [file for file in files if "ss%2Fword" in file.read_text()]


def test_without_an_address_the_records_are_in_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE)
    assert database() is None
    assert mlflow_env(tmp_path)["MLFLOW_BACKEND_STORE_URI"] == f"sqlite:///{tmp_path}/mlflow.db"


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ("mysql://ann:secret@db/lab", "not `mysql"),
        ("postgresql://ann:secret@/lab", "host is missing"),
        ("postgresql://db/lab", "user is missing"),
        ("postgresql://ann:secret@db:port/lab", "port cannot be read"),
        ("postgresql://ann@db/lab?password=secret", "`password` would not be used.*PGSSLMODE"),
        ("postgresql://ann:secret@db/lab?sslmode=require&a=b", "`sslmode, a` would not be used"),
        ("postgresql://ann:secret@db/lab#secret", "`#` would not be used"),
    ],
)
def test_what_is_no_address_is_refused(
    given: str, names: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, given)
    with pytest.raises(InputError, match=names) as refused:
        database()
    assert VARIABLE in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("given", ["", ADDRESS.replace("/lab", "/other")])
def test_a_stack_does_not_move_to_another_database_unasked(
    given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_record(new_stack(None))
    monkeypatch.setenv(VARIABLE, given)
    with pytest.raises(InputError, match=r"ann@db\.example:6000/lab.*Set TRIBUTARY_DATABASE_URL"):
        up()


def test_a_server_that_is_not_there_is_said_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (port,) = free_ports(1)
    monkeypatch.setenv(VARIABLE, f"postgresql://ann:secret@127.0.0.1:{port}/lab")
    with pytest.raises(InfrastructureError, match=f"ann@127.0.0.1:{port}/lab") as refused:
        up()
    assert "secret" not in str(refused.value)
