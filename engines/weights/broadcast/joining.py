"""How a sender and its servers come into one process group, all or none; who did not, and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from engines.weights.update import Servers, finish
from infra.errors import EngineError

JOIN_S = 120.0
"""what joining a group may take"""
ANSWER_S = 5.0
"""what servers may take to say what went wrong with them"""


def failed(
    what: str,
    urls: Sequence[str],
    asked: Sequence[Future[Any]],
    error: RuntimeError | TimeoutError,
    within_s: float | None = None,
) -> EngineError:
    """With what each server says; one that refused is the cause, the others waited for it.

    Torch raises nothing but RuntimeError for a group; TimeoutError is of a call that never ended.
    """
    wait(asked, timeout=ANSWER_S)
    told = [f"{url}: {_said(future)}" for url, future in zip(urls, asked, strict=True)]
    bound_s = JOIN_S if within_s is None else within_s
    return EngineError(
        f"weights by broadcast: servers {what} within {bound_s:.0f} s ({_first_line(error)});"
        f" {'; '.join(told)}. Look at a server that refused or does not answer; if they all run,"
        " let their hosts connect to that of the trainer, or set `weights.transport` in the stage's"
        " resources to `disk_delta` with a `url` that both sides reach"
    )


def _said(future: Future[Any]) -> str:
    if not future.done():
        return "no answer yet"
    error = future.exception()
    return "ready" if error is None else _first_line(error)


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


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
