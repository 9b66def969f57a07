"""What a curriculum gives wrongly in the middle of a run is bad input that names it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from engines.draws import draw_demonstrations, draw_problems
from engines.rollout.tickets import TicketSource
from engines.types import Message, Problem
from infra.errors import BAD_INPUT, InputError
from infra.hooks import construct, resolve
from tests.parts.rollout_parts import domain

pytestmark = pytest.mark.unit


class Giving:
    """A curriculum of one function."""

    def __init__(self, give: Callable[[int], Any]) -> None:
        self._give = give

    def problems(self, split: str, count: int, seed: int, start: int = 0) -> Any:
        return self._give(count)

    def demonstrations(self, count: int, seed: int) -> Any:
        return self._give(count)

    def environment(self) -> None: ...


def _raise(error: BaseException) -> Any:
    raise error


def _problems(count: int) -> list[Problem]:
    return [Problem(f"p{i}", "d", (Message("user", "1+1"),)) for i in range(count)]


PROBLEM = _problems(1)[0]


@pytest.mark.parametrize(
    ("give", "said"),
    [
        (lambda n: _problems(n - 1), "3 were asked for, 2 came"),
        (lambda n: [], "3 were asked for, 0 came"),
        (lambda n: [{"id": "p"}] * n, "gave dict where engines.types.Problem is wanted"),
        (lambda n: {"a", "b", "c"}, "gave str where"),
        (lambda n: None, "raised TypeError"),
        (lambda n: [PROBLEM] * n, "gave one problem twice, with the id 'p0'"),
        (
            lambda n: [
                replace(p, id="x") for p in _problems(n)[:1] * 2 + [replace(PROBLEM, reference=n)]
            ],
            "with the id 'x': their rollouts would be one group",
        ),
        (lambda n: [replace(p, reference={1}) for p in _problems(n)], "its reference is no JSON"),
        (lambda n: _raise(KeyError("no rl data")), "raised KeyError: 'no rl data'"),
        (lambda n: _raise(SystemExit(3)), "raised SystemExit: 3"),
        (lambda n: next(iter([])), "raised StopIteration"),
    ],
)
def test_problems_that_cannot_be_used_name_curriculum_and_split(
    give: Callable[[int], Any], said: str
) -> None:
    live = domain("d", lambda _: 1.0)
    object.__setattr__(live, "curriculum", Giving(give))
    with pytest.raises(InputError) as caught:
        TicketSource([live], split="rl", seed=0).draw(3)
    assert f"curriculum '{__name__}:Giving': problems of split 'rl'" in str(caught.value)
    assert said in str(caught.value)
    assert caught.value.exit_code == BAD_INPUT


def test_the_position_is_named_and_surplus_is_left() -> None:
    giving: Any = Giving(lambda n: _problems(5))
    assert draw_problems(giving, "sft", 3, 0) == _problems(3)
    with pytest.raises(InputError, match="from position 40: 6 were asked for, 5 came"):
        draw_problems(giving, "sft", 6, 0, start=40)


def test_demonstrations_are_looked_at_too() -> None:
    for give, said in ((lambda n: [], "none came"), (lambda n: [PROBLEM], "gave Problem where")):
        with pytest.raises(InputError, match=said):
            draw_demonstrations(Giving(give), 3, 0)


def test_a_part_that_ends_the_program_is_bad_input(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ends_here.py").write_text("raise SystemExit(3)")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match=r"importing 'ends_here' raised SystemExit\(3\)"):
        resolve("reward", "ends_here:x", {})
    with pytest.raises(InputError, match=r"constructor raised SystemExit\(3\)"):
        construct("reward", "r", lambda: _raise(SystemExit(3)), {})
