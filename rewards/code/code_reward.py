"""The reward `code`: does the program in the answer pass the tests of its row?"""

from __future__ import annotations

import functools
import os
import re
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from itertools import zip_longest
from typing import ClassVar, get_args

from engines.types import Transcript, Verdict
from infra.data_files.code_tests import CodeTests, read_code_tests
from infra.errors import InputError
from infra.processes.coroutines import wait_for_program
from infra.sandbox.kinds import process
from infra.sandbox.pool import Pool
from infra.sandbox.python import DEMANDS, Demand, level, require
from infra.sandbox.sandbox import Limits, Sandbox
from rewards.code.asserts import Fault, Outcome, ended, judge_asserts
from rewards.references import reference_of

_WALL_PER_CPU = 4
"""a program may wait, and share a processor, for so long"""
_OUTPUT = 16 << 20
_TESTER_MEMORY = 4
"""times an answer's: what the answer returned is held beside what is expected"""
_MOST_TIMEOUTS = 2
"""then the other inputs count as failed"""
_WARM, _AT_ONCE = 2, 8
_MOST = Limits(seconds=1e6, cpu_seconds=1_000_000, memory=1 << 40, output=_OUTPUT)
_FENCE = re.compile(r"([ \t]*)(`{3,}|~{3,})[ \t]*[^`\n]*")
_DEEPER = 4
"""columns; a fence that stands so much deeper than the open one is a docstring's"""
_NUMBER = re.compile(r"[+-]?(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][+-]?\d{1,3})?")
_WHOLE = re.compile(r"[+-]?\d+")
_CLOSE = 1e-6
_LINE = re.compile("[^\n\r\v\f\x1c-\x1e\x85\u2028\u2029]+")
_SHOWN = 80
_COMPILE_ERROR = 97
_PROGRAM = f"""
from typing import *
from sys import exit
quit = exit
try:
    _program = compile({{code!r}}, "answer.py", "exec")
except BaseException as error:
    print(f"{{{{type(error).__name__}}}}: {{{{error}}}}", file=__import__("sys").stderr)
    __import__("os")._exit({_COMPILE_ERROR})
exec(_program)
"""


class Code:
    """1 if the program in the answer's last fenced block passes all tests of its row, else 0.

    Python only, with the standard library. Its parts say the share that passed, and which fault the
    first failed test showed.
    """

    reference_keys: ClassVar = ("tests",)

    def __init__(
        self,
        *,
        time_limit: int = 6,
        memory_mb: int = 512,
        partial: bool = False,
        sandbox: Demand = "confined",
    ) -> None:
        """`time_limit`: seconds of processor time for one input, or for all asserts; `partial`: the
        score is the share of tests that passed; `sandbox`: what the kernel must offer before the
        model's code runs."""
        for name, value in (("time_limit", time_limit), ("memory_mb", memory_mb)):
            if value < 1:
                raise InputError(f"`{name}` must be a whole number of at least 1, not {value!r}.")
        if sandbox not in DEMANDS:
            raise InputError(f"`sandbox`: unknown {sandbox!r}. Allowed: {', '.join(DEMANDS)}.")
        if sandbox != "unsafe":
            require(level(), sandbox)
        self._partial, self._sandbox = partial, sandbox
        self._limits = Limits(
            seconds=float(_WALL_PER_CPU * time_limit),
            cpu_seconds=time_limit,
            memory=memory_mb << 20,
            output=_OUTPUT,
        )

    async def __call__(self, transcript: Transcript) -> Verdict:
        written = reference_of(transcript, self.reference_keys)["tests"]
        try:
            tests = read_code_tests(written)
            code = last_block(transcript.answer)
            if code is None:
                return self._verdict(Outcome(0, 1, "no_code", "no fenced block is in the answer"))
            return self._verdict(await wait_for_program(self._judge, code, tests))
        except InputError as error:
            raise InputError(f"problem {transcript.problem.id}: {error}") from None

    def _judge(self, code: str, tests: CodeTests) -> Outcome:
        with pool(os.getpid(), self._sandbox).taken() as sandbox:
            if tests.asserts:
                tester = replace(self._limits, memory=_TESTER_MEMORY * self._limits.memory)
                return judge_asserts(sandbox, code, tests, self._limits, tester)
            return _judge_pairs(sandbox, code, tests, self._limits, is_whole=self._partial)

    def _verdict(self, outcome: Outcome) -> Verdict:
        share = outcome.passed / outcome.of
        score = share if self._partial else float(not outcome.fault)
        faults = {name: float(name == outcome.fault) for name in get_args(Fault) if name}
        reason = f"{outcome.fault.replace('_', ' ')}: {outcome.reason}" if outcome.fault else ""
        return Verdict(score, {"passed": share, **faults}, reason)


@functools.cache
def pool(owner: int, demand: Demand) -> Pool:
    """Return the pool of sandboxes whose commands have limits of their own. `owner`: threads and
    sockets do not outlive a fork."""
    return Pool(lambda: process.start(_MOST, demand=demand), warm=_WARM, most=_AT_ONCE)


def last_block(answer: str) -> str | None:
    """Return what stands in the last fenced block, be it closed or not; None without one."""
    found: str | None = None
    fence, lines, most_indent = "", list[str](), 0
    for line in answer.splitlines():
        opened = _FENCE.fullmatch(line)
        indent = len(opened[1].expandtabs(4)) if opened else 0
        is_end = opened and opened[2].startswith(fence) and line.strip() == opened[2]
        if fence and is_end and indent < most_indent:
            fence, found = "", "\n".join(lines)
        elif fence:
            lines.append(line)
        elif opened:
            fence, lines, most_indent = opened[2], [], indent + _DEEPER
    code = "\n".join(lines) if fence else found
    return None if code is None else textwrap.dedent(code)


def _judge_pairs(
    sandbox: Sandbox, code: str, tests: CodeTests, limits: Limits, *, is_whole: bool
) -> Outcome:
    """Up to the first failure, or `is_whole`. What a program prints is compared here."""
    command, passed, late = ["python", "-c", _PROGRAM.format(code=code)], 0, 0
    first: Outcome | None = None
    count = len(tests.inputs)
    for at, (given, wanted) in enumerate(zip(tests.inputs, tests.outputs, strict=True), 1):
        result = sandbox.exec(command, stdin=given.encode(errors="replace"), limits=limits)
        fault, reason = ended(result, limits)
        if result.exit_code == _COMPILE_ERROR:
            return Outcome(0, count, "compile_error", reason)
        if not fault and (told := difference(result.stdout, wanted)):
            fault, reason = "wrong_answer", told
        passed, late = passed + (not fault), late + (fault == "timeout")
        if fault and first is None:
            first = Outcome(0, count, fault, f"test {at} of {count}: {reason}")
        if first and (not is_whole or late >= _MOST_TIMEOUTS):
            break
    return Outcome(passed, count, first.fault, first.reason) if first else Outcome(passed, count)


def difference(printed: str, wanted: str) -> str:
    """Say where what a program printed is not what is wanted, in words; empty if it is: the same
    words in each line, white space and empty lines aside, and numbers with a point within 1e-6. It
    looks at no more than it needs: millions of lines and words may have been printed."""
    pairs = zip_longest(_lines(printed), _lines(wanted), fillvalue="")
    for at, (line, right) in enumerate(pairs, 1):
        words = right.split()
        ours = line.split(maxsplit=len(words))
        if len(ours) != len(words) or not all(map(_is_same, ours, words)):
            return f"line {at} is {_shown(ours)!r}, not {_shown(words)!r}"
    return ""


def _lines(text: str) -> Iterator[str]:
    """Yield the lines that are not empty."""
    return (line for found in _LINE.finditer(text) if not (line := found[0]).isspace())


def _shown(words: list[str]) -> str:
    return " ".join(word[:_SHOWN] for word in words[:_SHOWN])[:_SHOWN]


def _is_same(word: str, right: str) -> bool:
    if word == right:
        return True
    if not _NUMBER.fullmatch(right) or not (_NUMBER.fullmatch(word) or _WHOLE.fullmatch(word)):
        return False
    value, wanted = float(word), float(right)
    return abs(value - wanted) <= _CLOSE * max(1.0, abs(wanted))
