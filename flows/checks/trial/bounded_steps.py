"""One step of a trial after the other: each is announced, bounded and, if it fails, named."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from flows.checks.trial.request import Findings
from infra.errors import InputError, TributaryError
from infra.user_files import HOOK_COPY

CALL_SECONDS = 30.0
"""of one call of a part that has no `timeout_s`"""
IMPORT_SECONDS = 60.0
"""of importing a module: torch takes ten on a loaded machine"""


class Observer(Protocol):
    """Watches a trial from outside and ends it when a step does not finish."""

    def begin(self, where: str, what: str, seconds: float) -> None: ...

    def printed(self) -> str:
        """What was written to the standard streams since the last call."""
        ...


class Blind:
    """Does nothing: for our own parts."""

    def begin(self, where: str, what: str, seconds: float) -> None:
        return

    def printed(self) -> str:
        return ""


class _Exited(Exception):
    """A coroutine raised SystemExit."""


class Attempts:
    """Runs steps and keeps what went wrong. One event loop serves all of them, as in a stage."""

    def __init__(self, observer: Observer, runner: asyncio.Runner) -> None:
        self.observer, self._runner = observer, runner
        self.problems: list[str] = []
        self.cautions: list[str] = []
        self.notes: list[str] = []

    def call(
        self, where: str, what: str, action: Callable[[], Any], seconds: float | None = None
    ) -> tuple[bool, Any]:
        """(whether it went well, what it gave)."""
        seconds = seconds or CALL_SECONDS
        self.observer.begin(where, what, seconds)
        try:
            return True, action()
        except TimeoutError:
            self.problems.append(
                f"{where}: {what} did not finish within {seconds:g} s; make it faster, or raise"
                " `timeout_s`"
            )
        except InputError as error:
            cause = _place(error.__cause__) if error.__cause__ is not None else ""
            self.problems.append(f"{where}: {error}{cause}")
        except (SystemExit, _Exited) as error:
            left = error.__cause__ if isinstance(error, _Exited) else error
            assert isinstance(left, SystemExit)
            self.problems.append(
                f"{where}: {what} ends the process (exit code {left.code}){_place(left)};"
                " raise an exception instead"
            )
        except Exception as error:  # the user's code may raise anything
            self.problems.append(f"{where}: {what} raised {told(error)}")
        return False, None

    def wait(
        self, where: str, what: str, action: Callable[[], Awaitable[Any]], seconds: float
    ) -> tuple[bool, Any]:
        """The same of a coroutine, which may take `seconds`."""

        async def kept_in() -> Any:
            try:
                return await action()
            except SystemExit as error:  # it would break the event loop
                raise _Exited from error

        async def bounded() -> Any:
            return await asyncio.wait_for(kept_in(), seconds)

        return self.call(where, what, lambda: self._runner.run(bounded()), seconds)

    def findings(self) -> Findings:
        return Findings(
            problems=list(dict.fromkeys(self.problems)),
            cautions=list(dict.fromkeys(self.cautions)),
            notes=self.notes,
        )


def told(error: BaseException) -> str:
    """Type, message and the line of the user's file; of an error of ours its message alone."""
    if isinstance(error, TributaryError):
        return str(error)
    said = f"{type(error).__name__}: {error}".rstrip(": ") + _place(error)
    if isinstance(error, TypeError | AttributeError) and "'Transcript'" in said:
        said += (
            ". A reward is called with one Transcript: its text is `transcript.answer`, the row's"
            " answer `transcript.problem.reference`"
        )
    return said


def _place(error: BaseException) -> str:
    """Where in the user's own files it was raised, e.g. ` (my_task.py, line 12)`."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if found := HOOK_COPY.search(frame.filename):
            return f" ({found[1]}, line {frame.lineno})"
    return ""
