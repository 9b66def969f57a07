"""Parts of the agent's recipe: problems that a program answers, and a reward with a process."""

from __future__ import annotations

import random
import zlib
from collections.abc import Mapping, Sequence
from typing import ClassVar

from curricula.agent import Agent
from curricula.procedural import Draft, Family
from curricula.worlds import PYTHON
from engines.types import Message, ToolCall, Transcript, Verdict
from rewards.math import MathJudge

_CODE = "print(6*7)"


def _program(rng: random.Random) -> Draft:
    """Always the same call, so that a model of no size learns it in seconds."""
    number = rng.randrange(1000)
    call = Message("assistant", "", tool_calls=(ToolCall(PYTHON.name, {"code": _CODE}),))
    return Draft(
        family="program",
        prompt=f"run {number}",
        content=f"run {number}",
        reference={"answer": "42", "needs": [PYTHON.name], "world": []},
        plan=(call, Message("assistant", "42")),
        tools=(PYTHON,),
    )


class Programs(Agent):
    """The agent's curriculum with one more level, whose problems need the Python tool."""

    levels: ClassVar[Mapping[str, Sequence[Family]]] = {**Agent.levels, "programs": (_program,)}


class Compared:
    """A comparison by math-verify's process for every rollout; right for one text in four."""

    def __init__(self) -> None:
        self._judge = MathJudge(20.0)

    async def __call__(self, transcript: Transcript) -> Verdict:
        number = zlib.crc32(transcript.raw.encode()) % 4
        return Verdict(float(await self._judge.equal("1/2", rf"\frac{{{number}}}{{2}}")))
