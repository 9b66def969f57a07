"""Which cores the ranks of a server get on a CPU."""

from __future__ import annotations

import os

import pytest

from engines.sglang.servers import host
from engines.sglang.servers.host import share_cores

pytestmark = pytest.mark.unit

NAME = "SGLANG_CPU_OMP_THREADS_BIND"


@pytest.mark.parametrize(
    ("cores", "ranks", "told"),
    [
        ({0, 1, 2, 3}, 2, "0,2|1,3"),
        ({4, 7}, 2, "4|7"),
        ({0}, 2, "0|0"),
        ({0, 1}, 1, None),
    ],
)
def test_ranks_share_the_cores_that_a_server_may_use(
    cores: set[int], ranks: int, told: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(NAME, "")
    monkeypatch.delenv(NAME)
    monkeypatch.setattr(host, "has_cuda", lambda: False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: cores)
    share_cores(ranks)
    assert os.environ.get(NAME) == told


def test_what_a_person_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "0-3|4-7")
    monkeypatch.setattr(host, "has_cuda", lambda: False)
    share_cores(2)
    assert os.environ[NAME] == "0-3|4-7"
