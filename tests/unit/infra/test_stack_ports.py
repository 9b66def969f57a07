"""Which ports a stack takes, and what is refused."""

from __future__ import annotations

import socket

import pytest

from infra.errors import InputError
from infra.stack.ports import PARTS, VARIABLE, choose_ports, fixed_ports

pytestmark = pytest.mark.unit


def test_each_part_has_a_port_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    chosen = choose_ports({})
    assert list(chosen) == list(PARTS)
    assert len(set(chosen.values())) == len(PARTS)


def test_a_port_is_kept_while_it_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        before = choose_ports({}) | {"mlflow": other.getsockname()[1]}
        after = choose_ports(before)
    assert {part for part in PARTS if before[part] != after[part]} == {"mlflow"}


def test_a_named_port_wins_over_the_one_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    before = choose_ports({})
    wanted = choose_ports(before)["ray_client"]
    monkeypatch.setenv(VARIABLE, f"prefect={wanted}")
    after = choose_ports(before)
    assert after["prefect"] == wanted
    assert len(set(after.values())) == len(PARTS)


def test_a_named_port_that_is_taken_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        monkeypatch.setenv(VARIABLE, f"mlflow={port}")
        with pytest.raises(InputError, match=f"mlflow={port}: another program"):
            choose_ports({})


@pytest.mark.parametrize(
    ("written", "what"),
    [
        ("prefct=4200", "no part `prefct`.*Did you mean `prefect`"),
        ("prefect", "write prefect=PORT"),
        ("prefect=80", "1024 to 65535"),
        ("prefect=4200,mlflow=4200", "mlflow=4200: the port is given twice"),
    ],
)
def test_what_is_no_port_is_refused_by_name(written: str, what: str) -> None:
    with pytest.raises(InputError, match=what):
        fixed_ports(written)


def test_spaces_and_empty_entries_do_not_matter() -> None:
    assert fixed_ports(" prefect=4200, mlflow=5000, ") == {"prefect": 4200, "mlflow": 5000}
    assert fixed_ports("") == {}
