"""Verdicts that are found once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from rewards.verdicts import KnownVerdicts

pytestmark = pytest.mark.unit


def test_whoever_asks_while_a_verdict_is_found_waits_for_it() -> None:
    known, may_end, found = KnownVerdicts[int](), threading.Event(), []

    def find() -> int:
        assert may_end.wait(10)
        found.append("a")
        return 7

    with ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(known.get, "a", find) for _ in range(4)]
        assert known.get("b", lambda: 8) == 8
        may_end.set()
        assert [one.result(10) for one in asked] == [7] * 4
    assert found == ["a"]


def test_an_error_is_told_and_forgotten() -> None:
    known = KnownVerdicts[int]()

    def fail() -> int:
        raise OSError("the sandbox is lost")

    with pytest.raises(OSError, match="lost"):
        known.get("a", fail)
    assert known.get("a", lambda: 3) == 3


def test_the_oldest_verdict_gives_way() -> None:
    known = KnownVerdicts[int](most=2)
    for key, value in (("a", 1), ("b", 2), ("a", 0), ("c", 3)):
        known.get(key, lambda value=value: value)
    assert known.get("a", lambda: 9) == 1
    assert known.get("b", lambda: 9) == 9
