"""Where Prefect and MLflow keep their records: files in the home, or a PostgreSQL server."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from infra.errors import InfrastructureError, InputError
from infra.home import home

VARIABLE = "TRIBUTARY_DATABASE_URL"
"""`postgresql://user:password@host:port/name`: its databases `name_prefect` and `name_mlflow` are
made if they are missing. From the environment alone, for it holds a password"""
CONNECT_SECONDS = 10
_DEFAULT_NAME = "tributary"
_PARTS = ("prefect", "mlflow")


@dataclass(frozen=True, slots=True)
class Database:
    """One PostgreSQL server, and what its databases' names start with."""

    user: str
    password: str
    host: str
    port: int
    name: str

    @property
    def shown(self) -> str:
        """Return the address without the password: for records, messages and pages."""
        return f"postgresql://{quote(self.user)}@{self._place}/{self.name}"

    def prefect_env(self) -> dict[str, str]:
        url = self._url("postgresql+asyncpg", "prefect")
        return {"PREFECT_SERVER_DATABASE_CONNECTION_URL": url}

    def mlflow_env(self) -> dict[str, str]:
        """Return the address as a variable, not as an argument: everybody may read a process's
        arguments."""
        return {"MLFLOW_BACKEND_STORE_URI": self._url("postgresql+psycopg2", "mlflow")}

    def prepare(self) -> None:
        """Make the databases that are missing.

        Raises InfrastructureError when the server does not answer or refuses.
        """
        import psycopg2
        from psycopg2.errors import DuplicateDatabase
        from psycopg2.sql import SQL, Identifier

        try:
            connection = psycopg2.connect(
                host=self.host, port=self.port, user=self.user, password=self.password,
                dbname="postgres", connect_timeout=CONNECT_SECONDS,
            )  # fmt: skip
            connection.autocommit = True  # a database is not made inside a transaction
            try:
                for part in _PARTS:
                    with connection.cursor() as cursor:
                        try:
                            name = Identifier(self._database(part))
                            cursor.execute(SQL("CREATE DATABASE {}").format(name))
                        except DuplicateDatabase:
                            continue
            finally:
                connection.close()
        except psycopg2.Error as error:
            raise InfrastructureError(
                f"the database {self.shown} of {VARIABLE} cannot be used: {str(error).strip()}. It "
                "must answer, and its user be allowed to make databases or find "
                f"{' and '.join(map(self._database, _PARTS))}"
            ) from error

    def connect_mlflow(self) -> Any:
        """Return a connection of psycopg2 to MLflow's records. Raises InfrastructureError."""
        import psycopg2

        try:
            return psycopg2.connect(
                host=self.host, port=self.port, user=self.user, password=self.password,
                dbname=self._database("mlflow"), connect_timeout=CONNECT_SECONDS,
            )  # fmt: skip
        except psycopg2.Error as error:
            raise InfrastructureError(
                f"the database {self.shown} of {VARIABLE} does not answer: {str(error).strip()}"
            ) from error

    def _database(self, part: str) -> str:
        return f"{self.name}_{part}"

    def _url(self, scheme: str, part: str) -> str:
        login = f"{quote(self.user, safe='')}:{quote(self.password, safe='')}"
        return f"{scheme}://{login}@{self._place}/{self._database(part)}"

    @property
    def _place(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def database() -> Database | None:
    """Return what the environment asks for; None keeps the records in the home's SQLite files.

    Raises InputError for an address that is none.
    """
    given = os.environ.get(VARIABLE, "")
    if not given:
        return None
    wanted = f"{VARIABLE} must be postgresql://USER:PASSWORD@HOST:PORT/NAME"
    try:
        url = urlsplit(given)
        port = url.port or 5432
    except ValueError:
        raise InputError(f"{wanted}: its host or port cannot be read") from None
    if url.scheme not in ("postgresql", "postgres"):
        raise InputError(f"{wanted}, not `{url.scheme}://...`")
    if url.query or url.fragment:
        names = ", ".join(part.partition("=")[0] for part in url.query.split("&")) or "#"
        raise InputError(
            f"{wanted}, with nothing behind NAME: `{names}` would not be used. Both servers read"
            " PGSSLMODE and PGSSLROOTCERT from the environment, e.g. PGSSLMODE=verify-full"
        )
    if not url.hostname or not url.username:
        raise InputError(f"{wanted}: the {'host' if url.username else 'user'} is missing")
    return Database(
        user=unquote(url.username),
        password=unquote(url.password or ""),
        host=url.hostname,
        port=port,
        name=url.path.strip("/") or _DEFAULT_NAME,
    )


def free_bytes(file: Path) -> int:
    """Return what removed rows left in a SQLite file: further rows take it, so that the file grows
    no more, and it gets no smaller by itself. 0 for a file that is not there."""
    if not file.is_file():
        return 0
    with closing(sqlite3.connect(file, timeout=CONNECT_SECONDS)) as connection:
        ((pages,),) = connection.execute("PRAGMA freelist_count")
        ((size,),) = connection.execute("PRAGMA page_size")
    return pages * size


def give_back(file: Path) -> bool:
    """Write a SQLite file anew without that, which takes its size on the disk meanwhile; False if
    a program that uses it does not let go of it, or the disk is full."""
    with closing(sqlite3.connect(file, timeout=CONNECT_SECONDS)) as connection:
        try:
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.OperationalError:
            return False
    return True


def mlflow_env(folder: Path) -> dict[str, str]:
    chosen = database()
    if chosen is None:
        return {"MLFLOW_BACKEND_STORE_URI": f"sqlite:///{folder / 'mlflow.db'}"}
    return chosen.mlflow_env()


def prefect_env() -> dict[str, str]:
    chosen = database()
    return chosen.prefect_env() if chosen else {}


def shown_database() -> str:
    """Return the database as it is shown; empty for the home's own files."""
    chosen = database()
    return chosen.shown if chosen else ""


def require_same(recorded: str) -> None:
    """Raises InputError when the environment names another database than this home's stack uses.

    Going on with another one would lose sight of every run.
    """
    asked = shown_database()
    if recorded == asked:
        return
    here = f"SQLite files in {home()}"
    raise InputError(
        f"the records of {home()}'s stack are in {recorded or here}, and {VARIABLE} now says "
        f"{asked or here}. "
        + (f"Set {VARIABLE} to that database" if recorded else f"Unset {VARIABLE}")
        + f", or leave those records behind: `tributary down`, then delete {home() / 'stack.json'}"
    )
