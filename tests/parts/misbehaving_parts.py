"""Rewards and a curriculum that hang, block, or die. They are imported by a process each, and so
with little beside them."""

from __future__ import annotations

import asyncio
import os
import re
import time

from engines.types import (
    AssistantTurn,
    Demonstration,
    Episode,
    Message,
    Problem,
    ProtocolBreak,
    Split,
    Step,
    Transcript,
    Verdict,
)


async def judge(transcript: Transcript) -> Verdict:
    return Verdict(float(transcript.answer == "7"))


def plain(transcript: Transcript, *, bonus: float = 0.0) -> Verdict:
    return Verdict(bonus, reason=f"in {os.getpid()}")


async def waits(transcript: Transcript) -> Verdict:
    await asyncio.sleep(3600)
    return Verdict(1.0)


async def blocks(transcript: Transcript) -> Verdict:
    time.sleep(3600)
    return Verdict(1.0)


async def backtracks(transcript: Transcript) -> Verdict:
    """It holds the interpreter's lock: no thread of its process runs any more."""
    re.match(r"(a+)+$", "a" * 60 + "b")
    return Verdict(1.0)


async def refuses_to_end(transcript: Transcript) -> Verdict:
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            continue


async def exits(transcript: Transcript) -> Verdict:
    raise SystemExit(3)


async def blocks_on_7(transcript: Transcript) -> Verdict:
    if transcript.answer == "7":
        time.sleep(3600)
    return Verdict(1.0)


class Unbuildable:
    def __init__(self) -> None:
        raise SystemExit(3)


class Tools:
    """A curriculum whose tool obeys the model: wait, block, break, fail, or answer."""

    def problems(self, split: Split, count: int, seed: int, start: int = 0) -> list[Problem]:
        return [Problem(f"tools/{n}", "d", (Message("user", "u"),)) for n in range(count)]

    def demonstrations(self, count: int, seed: int) -> list[Demonstration]:
        return []

    def environment(self) -> Tools:
        return self

    async def start(self, problem: Problem) -> Episode:
        return ToolEpisode()


class Bare(Tools):
    def environment(self) -> None:
        return None


class ToolEpisode:
    async def step(self, turn: AssistantTurn) -> Step:
        match turn.tool_calls[0].name if turn.tool_calls else "":
            case "wait":
                await asyncio.sleep(3600)
            case "block":
                time.sleep(3600)
            case "break":
                raise ProtocolBreak("no such tool")
            case "fail":
                raise KeyError("index")
            case "":
                return Step(done=True)
            case _:
                pass
        return Step((Message("tool", "42"),))

    async def close(self) -> None: ...


class Waiting:
    async def wait(self) -> None:
        await asyncio.sleep(3600)
