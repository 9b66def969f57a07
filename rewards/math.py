r"""The `math` reward: is the boxed answer equal to the reference, as mathematics?

Numbers, words and the forms around them (lists, sets, intervals, ...) are compared here, exactly
(`rewards/mathematics/math_forms.py`); expressions by math-verify. That would do any sum that an
answer leaves open, so where a number is asked for, the answer has to be one: `30+12` is no answer
to `12+30`.

math-verify bounds itself by alarm signals, which do not work outside a main thread, and an
expression such as `9^{9^{9^9}}` may take memory as well as time. So it runs in a process of its
own: warm, asked over pipes, killed when it takes too long.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import select
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, cast

from engines.types import Transcript, Verdict
from infra.errors import InputError, TributaryError
from infra.json_text import value_text
from infra.processes.coroutines import wait_for_program
from infra.secret_references import environment_without_secrets
from rewards.mathematics.math_forms import same
from rewards.mathematics.math_writing import plain
from rewards.references import reference_of
from rewards.text import format_fault, last_boxed

MAX_ANSWER = 500
"""characters; a longer answer is wrong unread"""
ROUNDS = 3
"""of questions to math-verify about one answer: some are asked only where another is answered"""
_WRITTEN = re.compile(r'\s*[\[{]\s*"')
"""a list or an object as JSON text"""
START_LIMIT = 120.0
"""seconds; importing sympy takes one, or many on a loaded machine"""
WORKER = Path(__file__).parent / "mathematics" / "math_worker.py"


class Math:
    r"""1 if the reply is well formed and its last box contains the reference answer, else 0.

    Boxes with nothing but commas between them are one list of answers.

    A reference that is a list holds answers of which one is enough; of one that has a `\boxed{}`,
    that counts.
    """

    reference_keys: ClassVar = ("answer",)

    def __init__(self, *, time_limit: float = 5.0) -> None:
        """`time_limit`: seconds that one comparison may take; then the answer counts as wrong."""
        if time_limit <= 0:
            raise InputError(
                f"`time_limit` must be a number of seconds above 0, not {time_limit!r}."
            )
        self._judge = MathJudge(time_limit)

    async def __call__(self, transcript: Transcript) -> Verdict:
        golds = _golds(reference_of(transcript, self.reference_keys)["answer"])
        if fault := format_fault(transcript):
            return Verdict(0.0, reason=fault)
        answer = ", ".join(last_boxed(transcript.answer))
        if not answer:
            return Verdict(0.0, reason="no boxed answers: `math` reads what stands in \\boxed{...}")
        try:
            for gold in golds:
                if await self._equal(gold, answer):
                    return Verdict(1.0)
        except TookTooLong as error:
            return Verdict(0.0, reason=str(error))
        return Verdict(0.0, reason=f"answered {answer!r}, not {' or '.join(map(repr, golds))}")

    async def _equal(self, gold: str, answer: str) -> bool:
        if len(answer) > MAX_ANSWER:
            return gold == answer
        gold, answer = plain(gold), plain(answer)
        asked: dict[tuple[str, str], bool | None] = {}

        def note(first: str, second: str) -> bool:
            return asked.setdefault((first, second), None) or False

        for _ in range(ROUNDS):
            right = same(gold, answer, note)
            new = [pair for pair, found in asked.items() if found is None]
            if right or not new:
                return right
            asked |= dict(zip(new, await self._judge.each_equal(new), strict=True))
        return same(gold, answer, note)


def _golds(value: Any) -> list[str]:
    """Raises InputError for what is no answer."""
    if isinstance(value, list):
        given = [each for each in cast("list[Any]", value) if each is not None]
        return [gold for each in given for gold in _golds(each)]
    if isinstance(value, dict) or value is None:
        raise InputError(f"the reference answer is {value!r}; it must be a number or a text")
    if isinstance(value, str) and _WRITTEN.match(value):
        with suppress(ValueError):
            return _golds(json.loads(value))
    text = value_text(value)
    return [", ".join(last_boxed(text)) or text]


class TookTooLong(TributaryError):
    """A comparison passed its time limit, or ended its worker twice; the worker was replaced."""


class _WorkerDied(Exception):
    """It ended while it had a question."""


class MathJudge:
    """Asks one worker process, started at the first question. Safe to call concurrently."""

    def __init__(self, time_limit: float) -> None:
        self.time_limit = time_limit
        """seconds for one comparison"""
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        atexit.register(self.close)

    async def equal(self, gold: str, answer: str) -> bool:
        """Return whether both denote the same. Raises `TookTooLong`."""
        (found,) = await self.each_equal([(gold, answer)])
        return found

    async def each_equal(self, pairs: Sequence[tuple[str, str]]) -> list[bool]:
        """Return whether the two of each pair denote the same, all within the time of one
        comparison. Raises `TookTooLong`."""
        return await wait_for_program(self._ask, pairs)

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def __reduce__(self) -> tuple[type[MathJudge], tuple[float]]:
        """A copy in another process starts its own worker."""
        return MathJudge, (self.time_limit,)

    def _ask(self, pairs: Sequence[tuple[str, str]]) -> list[bool]:
        with self._lock:
            try:
                return self._asked(pairs)
            except _WorkerDied:
                pass  # by its question, or by what has nothing to do with it: a second one knows
            try:
                return self._asked(pairs)
            except _WorkerDied:
                raise TookTooLong("math-verify: the worker died twice") from None

    def _asked(self, pairs: Sequence[tuple[str, str]]) -> list[bool]:
        process = self._running()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(pairs).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError as error:
            self.close()
            raise _WorkerDied from error
        found: list[bool] = json.loads(self._read(process, self.time_limit))
        return found

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._process = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-I", str(WORKER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment_without_secrets(os.environ),
                start_new_session=True,
            )
            self._read(self._process, START_LIMIT)
        return self._process

    def _read(self, process: subprocess.Popen[bytes], limit: float) -> bytes:
        """The worker's next line; it is killed where none comes in time. Raises `_WorkerDied`."""
        assert process.stdout is not None
        deadline, line = time.monotonic() + limit, b""
        while not line.endswith(b"\n"):
            left = max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select([process.stdout], [], [], left)
            chunk = os.read(process.stdout.fileno(), 4096) if ready else b""
            if not chunk:
                self.close()
                if ready:
                    raise _WorkerDied
                raise TookTooLong(f"math-verify: no verdict within {limit:g} s")
            line += chunk
        return line
