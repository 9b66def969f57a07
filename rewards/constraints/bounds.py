"""How a constraint says how many: `exactly`, `at_least`, `at_most`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Concatenate, ParamSpec

from infra.errors import InputError

P = ParamSpec("P")
NONE = float("nan")
"""what a count gives for a reply of another form: no bound holds for it"""


def bounded_in_each(parts: Callable[[str], Sequence[Sequence[str]]]) -> Callable[..., bool]:
    """A check of the number of units in each part: `parts` splits a reply into them."""

    def check(
        reply: str,
        *,
        exactly: float | None = None,
        at_least: float | None = None,
        at_most: float | None = None,
    ) -> bool:
        found = parts(reply)
        return bool(found) and all(within(len(p), exactly, at_least, at_most) for p in found)

    check.__doc__, check.__name__ = parts.__doc__, parts.__name__
    return check


def within(
    value: float,
    exactly: float | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
) -> bool:
    """Whether a number is within the bounds that are given. Raises InputError without any."""
    if exactly is None and at_least is None and at_most is None:
        raise InputError("say how many: `exactly`, `at_least` or `at_most`")
    return (
        (exactly is None or value == exactly)
        and (at_least is None or value >= at_least)
        and (at_most is None or value <= at_most)
    )


def bounded(count: Callable[Concatenate[str, P], float]) -> Callable[..., bool]:
    """A check of what `count` finds in a reply: it takes the bounds beside the parameters of
    `count`."""

    def check(
        reply: str,
        exactly: float | None = None,
        at_least: float | None = None,
        at_most: float | None = None,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> bool:
        return within(count(reply, *args, **kwargs), exactly, at_least, at_most)

    own = list(inspect.signature(count, eval_str=True).parameters.values())
    limits = list(inspect.signature(within, eval_str=True).parameters.values())[1:]
    named = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (*own[1:], *limits)]
    check.__doc__, check.__name__ = count.__doc__, count.__name__
    check.__signature__ = inspect.Signature([own[0], *named])  # pyrefly: ignore[missing-attribute]
    return check
