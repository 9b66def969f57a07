"""Verdicts that are found once, however many ask: rollouts of a group often end with one answer."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

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
