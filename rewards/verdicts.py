"""Reads what a reward returned: a Verdict, or just its score, as numbers of whichever library.

A reward is called with the transcript. It may be a function or an object with `__call__`, `async`
or not.
"""

from __future__ import annotations

import inspect
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, Generic, TypeVar, cast

from engines.types import Transcript, Verdict
from infra.json_text import number_of, writable

_SHOWN = 80
"""characters of a value that are quoted"""


class NoVerdict(Exception):
    """What a reward returned is no verdict. The text continues its name: `returned None: ...`."""


async def verdict_by(reward: Callable[[Transcript], Any], transcript: Transcript) -> Verdict:
    """Calls a reward and reads its verdict. Raises NoVerdict, and what the reward raises."""
    returned = reward(transcript)
    return verdict_of(await returned if inspect.isawaitable(returned) else returned)


class OwnReward:
    """A user's reward, so that its verdicts have plain numbers only."""

    def __init__(self, reward: Callable[[Transcript], Any]) -> None:
        self._reward = reward

    async def __call__(self, transcript: Transcript) -> Verdict:
        return await verdict_by(self._reward, transcript)


def verdict_of(returned: object) -> Verdict:
    """Return the same verdict with plain finite numbers. Raises NoVerdict."""
    if not isinstance(returned, Verdict):
        score = number_of(returned)
        if score is None:
            raise NoVerdict(
                f"returned {shown(returned)}: a reward returns its score as one number, True or"
                " False, or a `Verdict` with that score"
            )
        return Verdict(_finite("", score))
    given: Any = returned  # whatever a user's code put into it
    parts: Any = {} if given.parts is None else given.parts
    turns: Any = () if given.turns is None else given.turns
    if not isinstance(parts, Mapping):
        raise NoVerdict(
            f"returned a Verdict whose `parts` is {shown(parts)}: it maps names to numbers"
        )
    if isinstance(turns, str | bytes | Mapping) or not isinstance(turns, Iterable):
        raise NoVerdict(f"returned a Verdict whose `turns` is {shown(turns)}: it lists numbers")
    return Verdict(
        _read("score", given.score),
        {
            writable(str(name)): _read(f"parts[{name!r}]", value)
            for name, value in cast("Mapping[object, object]", parts).items()
        },
        str(given.reason or ""),
        tuple(
            _read(f"turns[{at}]", value) for at, value in enumerate(cast("Iterable[object]", turns))
        ),
    )


def _read(field: str, value: object) -> float:
    number = number_of(value)
    if number is None:
        raise NoVerdict(
            f"returned a Verdict whose `{field}` is {shown(value)}: every score must be a finite"
            " number"
        )
    return _finite(field, number)


def _finite(field: str, number: float) -> float:
    if not math.isfinite(number):
        of = f"a Verdict whose `{field}` is " if field else ""
        raise NoVerdict(f"returned {of}{number}: every score must be a finite number")
    return number


def shown(value: object) -> str:
    """Return the value's type and text, e.g. `str 'good'`."""
    if value is None:
        return "None"
    said = repr(value)
    return f"{type(value).__name__} {said if len(said) <= _SHOWN else said[:_SHOWN] + '...'}"


Found = TypeVar("Found")
MOST_KNOWN = 2_048


class KnownVerdicts(Generic[Found]):
    """The latest `most` of them, by what they are about."""

    def __init__(self, most: int = MOST_KNOWN) -> None:
        self._most = most
        self._known: OrderedDict[str, Future[Found]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: str, find: Callable[[], Found]) -> Found:
        """The known one of `key`. Otherwise it is found; whoever asks meanwhile waits for it.

        What `find` raises reaches all who wait, and is forgotten.
        """
        with self._lock:
            known = self._known.get(key)
            is_first = known is None
            if known is None:
                known = self._known[key] = Future[Found]()
                while len(self._known) > self._most:
                    self._known.popitem(last=False)
            self._known.move_to_end(key)
        if is_first:
            self._fill(key, known, find)
        return known.result()

    def _fill(self, key: str, known: Future[Found], find: Callable[[], Found]) -> None:
        try:
            known.set_result(find())
        except BaseException as error:
            with self._lock:
                if self._known.get(key) is known:
                    del self._known[key]
            known.set_exception(error)
