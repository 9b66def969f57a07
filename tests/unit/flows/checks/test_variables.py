"""Values of TRIBUTARY_* variables that are refused before anything starts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flows.checks.store_checks import require_variables
from infra.errors import InputError
from infra.processes.variables import CHECK_WEIGHTS
from infra.stack.record import Stack
from infra.stack.services import service_env
from infra.stack.stack_ports import PARTS

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def _no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TRIBUTARY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path / "home"))


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("HOME", "/proc/no/home", "the home /proc/no/home cannot be made"),
        ("HOST", "localhost", "not an IPv4 address of this machine"),
        ("ADDRESS", "127.0.0.2", "is told to other hosts only with TRIBUTARY_HOST=0.0.0.0"),
        ("KEY", "secret", "16 to 256 letters"),
        ("PORTS", "prefekt=4200", "Did you mean `prefect`?"),
        ("DATABASE_URL", "mysql://a@b/c", "must be postgresql://"),
        ("CACHE_GB", "many", "give a number of gigabytes, e.g. 500"),
        ("CACHE_GB", "nan", "give a number of gigabytes, e.g. 500"),
        ("KEEP_DAYS", "1.5", "give a number of days, e.g. 90"),
        ("CHECK_WEIGHTS", "yes", "set it to 1 or 0, or unset it"),
        ("JOB_TEMPLATE", "/no/file", "cannot be read as JSON"),
        ("STACK_ELSEWHERE", "false", "set it to 1 or 0, or unset it"),
        ("KEEP_DAY", "30", "is no variable that is read; did you mean TRIBUTARY_KEEP_DAYS?"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(
    name: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"TRIBUTARY_{name}", value)
    with pytest.raises(InputError) as caught:
        require_variables()
    assert said in str(caught.value)


def test_right_values_and_names_of_others_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    right = {"HOST": "0.0.0.0", "PORTS": "prefect=4200", "CACHE_GB": "0.5", "KEEP_DAYS": "30"}
    right |= {"CHECK_WEIGHTS": "1", "STACK_ELSEWHERE": "0", "KEY": "", "OF_MINE": "x"}
    for name, value in right.items():
        monkeypatch.setenv(f"TRIBUTARY_{name}", value)
    require_variables()


def test_what_stages_read_themselves_reaches_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CHECK_WEIGHTS, "1")
    monkeypatch.setenv("TRIBUTARY_CACHE_GB", "7")
    env = service_env(Stack(mark="m", ports=dict.fromkeys(PARTS, 9999)), "ray")
    assert (env[CHECK_WEIGHTS], env["TRIBUTARY_CACHE_GB"]) == ("1", "7")
