"""A scripted policy behind the agents' gateway: test input, not an engine.

Tokens are character codes. A turn is `<think>why</think>text` and calls, each on a line of its own:
`!name {"key": 1}`. Every sampled token has a log-probability of its own, so that each can be
followed into the samples.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np

from engines.agents.agent_session import AgentSession
from engines.agents.gateway import Gateway, GatewayServer
from engines.agents.limits import GatewayLimits, SessionLimits
from engines.rollout.drivers.session_host import Attempt, SessionHost
from engines.types import (
    AssistantTurn,
    Generation,
    Message,
    Problem,
    Sampling,
    TokenIds,
    ToolCall,
)
from engines.weight_versions import WeightVersions
from tests.parts.rollout_parts import STOP, ids

HEADER = "\nassistant> "
PROBLEM = Problem("p/1", "agents", (Message("user", "task"),), thinking=True)


class TextChat:
    """One token a character; earlier thoughts are not written again, as templates do."""

    stop_token_ids = (STOP,)

    def decided(self, problem: Problem) -> Problem:
        return problem

    def prompt_ids(self, problem: Problem) -> list[int]:
        names = ",".join(tool.name for tool in problem.tools)
        return [*ids(f"[{names}]"), *_written(problem.messages), *ids(HEADER)]

    def continuation_ids(
        self,
        problem: Problem,
        turns: Sequence[Message],
        new: Sequence[Message],
        last_token: int | None,
    ) -> list[int]:
        end = [] if last_token == STOP else [STOP]
        return [*end, *_written(new), *ids(HEADER)]

    def turn_ids(self, problem: Problem, turn: Message) -> list[int]:
        return [*ids(_said(turn)), STOP]

    def parse(self, problem: Problem, token_ids: TokenIds, before: TokenIds = ()) -> AssistantTurn:
        text = self.decode(token_ids)
        thought, closed, rest = text.removeprefix("<think>").rpartition("</think>")
        lines = rest.split("\n")
        calls = [line for line in lines if line.startswith("!")]
        content = "\n".join(line for line in lines if not line.startswith("!"))
        error = "broken call" if "?broken" in rest else ""
        return AssistantTurn(
            text, content, thought if closed else None, tuple(map(_call, calls)), error
        )

    def decode(self, token_ids: TokenIds) -> str:
        return "".join(chr(t) for t in token_ids if t != STOP)


def _call(line: str) -> ToolCall:
    name, _, arguments = line[1:].partition(" ")
    return ToolCall(name, json.loads(arguments or "{}"))


def _said(message: Message) -> str:
    calls = [f"!{call.name} {json.dumps(call.arguments)}" for call in message.tool_calls]
    return "\n".join([message.content, *calls])


def _written(messages: Sequence[Message]) -> list[int]:
    found: list[int] = []
    for message in messages:
        found += ids(f"\n{message.role}> {_said(message)}")
        found += [STOP] if message.role == "assistant" else []
    return found


class Script:
    """Answers what `say(prompt)` says, after `delay_s`; keeps the tokens of each turn by their
    log-probabilities, which are -1, -2, -3, ..."""

    def __init__(self, say: Callable[[str], str], delay_s: float = 0.0) -> None:
        self._say = say
        self.delay_s = delay_s
        self.sampled: dict[int, int] = {}
        """token by serial number"""
        self.prompts: list[str] = []
        self.started = 0
        self.cancelled = 0

    async def generate(self, prompt_ids: TokenIds, sampling: Sampling) -> Generation:
        prompt = "".join(map(chr, prompt_ids))
        self.prompts.append(prompt)
        self.started += 1
        try:
            await asyncio.sleep(self.delay_s)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        said = [*ids(self._say(prompt)), STOP]
        cut = said[: sampling.max_new_tokens]
        serials = range(len(self.sampled) + 1, len(self.sampled) + 1 + len(cut))
        self.sampled.update(zip(serials, cut, strict=True))
        return Generation(
            np.array(cut, np.int32),
            -np.array(serials, np.float32),
            WeightVersions.of_runs([(0, len(cut))]),
            "stop" if len(cut) == len(said) else "length",
        )


def attempt_of(
    problem: Problem,
    max_new_tokens: int = 100_000,
    context_length: int = 1_000_000,
    temperature: float = 1.0,
) -> Attempt:
    return Attempt(
        problem, "agents", TextChat().prompt_ids(problem), "g", 0, "g", temperature,
        max_new_tokens, 0, context_length,
    )  # fmt: skip


def session_of(
    script: Script,
    limits: SessionLimits | None = None,
    *,
    problem: Problem = PROBLEM,
    **attempt: Any,
) -> AgentSession:
    """`attempt`: as `attempt_of` takes them."""
    host = SessionHost(script.generate, TextChat(), attempt_of(problem, **attempt))
    return AgentSession(host, problem, limits or SessionLimits())


@asynccontextmanager
async def served(
    session: AgentSession, limits: GatewayLimits | None = None
) -> AsyncGenerator[tuple[str, str]]:
    """The address of a gateway, and the session's key."""
    gateway = Gateway(limits)
    server = GatewayServer(gateway)
    await server.start()
    try:
        yield f"http://{server.address}", gateway.open(session)
    finally:
        await server.close()
