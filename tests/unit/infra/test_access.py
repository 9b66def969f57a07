"""Where servers listen, and the key that they then need: made, taken, refused, never shown."""

from __future__ import annotations

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from engines.sglang.arguments import server_options
from engines.sglang.server_options import check_options
from engines.sglang.servers.server_launcher import keep_from_logs
from engines.sglang.spec import FleetSpec
from infra.access import (
    HOST_VARIABLE,
    KEY_VARIABLE,
    bearer,
    key,
    key_path,
    listening_host,
    prepare_key,
    reachable,
    required_key,
)
from infra.errors import InputError
from infra.processes.children import ProcessRecord, birth_of
from infra.stack import up
from infra.stack.record import Stack, new_stack, save_record
from infra.stack.services import services

pytestmark = pytest.mark.unit

EVERYWHERE = "0.0.0.0"
KEY = "a-key-of-our-own-making"


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path))
    monkeypatch.delenv(HOST_VARIABLE, raising=False)
    monkeypatch.delenv(KEY_VARIABLE, raising=False)


def test_by_default_servers_listen_on_loopback_and_ask_for_the_key(tmp_path: Path) -> None:
    stack = new_stack(None)
    prepare_key(in_use=False)
    assert stack.host == listening_host() == "127.0.0.1"
    assert len(key()) >= 32
    assert stack.secret_env()["MLFLOW_TRACKING_PASSWORD"] == key()
    assert stack.env()["RAY_AUTH_MODE"] == "token"
    assert HOST_VARIABLE not in stack.env()
    assert not any(EVERYWHERE in part for part in _arguments(stack))
    assert server_options(FleetSpec(), tmp_path, 1, 1, 0)["host"] == "127.0.0.1"


def test_told_otherwise_all_listen_there_and_this_machine_still_uses_loopback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HOST_VARIABLE, EVERYWHERE)
    stack = new_stack(None)
    prepare_key(in_use=False)
    assert sum(EVERYWHERE in part for part in _arguments(stack)) == 3
    assert server_options(FleetSpec(), tmp_path, 1, 1, 0)["host"] == EVERYWHERE
    assert stack.prefect_api.startswith("http://127.0.0.1:")
    assert (reachable(EVERYWHERE), reachable("10.1.2.3")) == ("127.0.0.1", "10.1.2.3")


@pytest.mark.parametrize("host", ["example.org", "::", "192.0.2.250", "0.0.0.0:80"])
def test_what_is_no_address_of_this_machine_is_refused(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HOST_VARIABLE, host)
    with pytest.raises(InputError, match=f"{HOST_VARIABLE} is `{host}`"):
        up()


def test_a_key_is_made_once_and_only_its_owner_may_read_it() -> None:
    prepare_key(in_use=False)
    made = key()
    prepare_key(in_use=False)
    assert len(made) >= 32
    assert key() == required_key() == made
    assert key_path().stat().st_mode & 0o777 == 0o600
    assert bearer() == {"Authorization": f"Bearer {made}"}


def test_a_key_is_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare_key(in_use=False)
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    with pytest.raises(InputError, match="tributary down"):
        prepare_key(in_use=True)
    prepare_key(in_use=False)
    assert key() == KEY
    assert key_path().stat().st_mode & 0o777 == 0o600


def test_a_server_that_starts_without_a_stack_makes_the_key_once() -> None:
    with ThreadPoolExecutor() as pool:
        made = set(pool.map(lambda _: required_key(), range(8)))
    assert made == {key()}
    assert key_path().stat().st_mode & 0o777 == 0o600
    assert list(key_path().parent.iterdir()) == [key_path()]
    prepare_key(in_use=False)
    assert made == {key()}


def test_a_stack_without_a_possible_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOST_VARIABLE, EVERYWHERE)
    monkeypatch.setenv(KEY_VARIABLE, "short")
    with pytest.raises(InputError, match="16 to 256") as weak:
        up()
    assert "short" not in str(weak.value)
    monkeypatch.delenv(KEY_VARIABLE)
    key_path().write_text(KEY)
    key_path().chmod(0o644)
    with pytest.raises(InputError, match="chmod 600") as seen:
        up()
    assert KEY not in str(seen.value)


def test_a_lost_key_of_a_running_stack_is_not_replaced() -> None:
    with pytest.raises(InputError, match="is missing in"):
        prepare_key(in_use=True)
    assert not key_path().exists()


def test_a_running_stack_does_not_move_to_another_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = ProcessRecord(pid=os.getpid(), birth=birth_of(os.getpid()), log=tmp_path / "log")
    save_record(new_stack(None).model_copy(update={"services": {"ray": running}}))
    monkeypatch.setenv(HOST_VARIABLE, EVERYWHERE)
    with pytest.raises(InputError, match=r"listens on 127\.0\.0\.1.*tributary down"):
        up()
    assert not key_path().exists()


def test_the_key_is_in_no_argument_no_record_and_nothing_that_a_job_is_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(HOST_VARIABLE, EVERYWHERE)
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    stack = new_stack(None)
    prepare_key(in_use=False)
    assert not any(KEY in part for part in _arguments(stack))
    assert KEY not in stack.model_dump_json()
    assert KEY not in str(stack.env())
    known = {service.name: service.env for service in services(stack)}
    assert KEY in known["prefect-worker"]["PREFECT_API_AUTH_STRING"]
    assert not [name for name in ("ray", "mlflow") if KEY in str(known[name])]
    assert known["ray"]["RAY_AUTH_TOKEN_PATH"] == str(key_path())
    assert all(KEY_VARIABLE not in env for env in known.values())


@pytest.mark.parametrize(
    "option", [{"tokenizer_worker_num": 2}, {"grpc_mode": True}, {"crash_dump_folder": "/dumps"}]
)
def test_a_server_that_would_not_keep_its_key_is_refused(
    option: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=f"fleet.sglang.{next(iter(option))}"):
        server_options(FleetSpec(sglang=option), tmp_path, 1, 1, 0)


def test_a_log_does_not_hold_the_key(caplog: pytest.LogCaptureFixture) -> None:
    stock = logging.getLogRecordFactory()
    try:
        keep_from_logs(KEY)
        logging.getLogger("x").warning("args=%s", {"api_key": KEY})
        logging.getLogger("x").warning("nothing of %d%%", 7)
    finally:
        logging.setLogRecordFactory(stock)
    # Senders of other tests' trackers may log from their own threads meanwhile.
    messages = [message for name, _, message in caplog.record_tuples if name == "x"]
    assert messages == ["args={'api_key': '***'}", "nothing of 7%"]


@pytest.mark.parametrize("name", ["api_key", "admin_api_key", "host"])
def test_a_recipe_sets_neither_address_nor_key(name: str) -> None:
    with pytest.raises(InputError, match=f"fleet.sglang.{name} cannot be passed through"):
        check_options({name: "x"})


def _arguments(stack: Stack) -> list[str]:
    return [part for service in services(stack) for part in service.command]
