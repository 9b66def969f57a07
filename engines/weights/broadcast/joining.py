"""How a trainer's sender and its servers come into one process group: all of them, or none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from engines.weights.broadcast.failure import failed
from engines.weights.update import Servers, finish

_Group = TypeVar("_Group")


def join_all(
    urls: Sequence[str],
    ask: Callable[[str], Any],
    own: Callable[[], _Group],
    leave: Callable[[_Group], None],
    address: str,
) -> _Group:
    """The group that `own` makes here while `ask` has each server join it at `address`; all `leave`
    it if a server then refuses. Raises EngineError."""
    with Servers(urls) as servers:
        joining = servers.start(ask)
        try:
            group = own()
        except RuntimeError as error:
            what = f"did not all join the trainer's process group at {address}"
            raise failed(what, urls, joining, error) from error
        try:
            finish(joining)
        except BaseException:
            leave(group)
            raise
    return group
