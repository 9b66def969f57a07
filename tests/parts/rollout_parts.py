"""Small deterministic parts for the tests of the rollout dataflow: test input, not engines.

A problem is `say a digit`; the policy answers one digit token and the stop token. Tokens are
character codes, so that ids and text are readable in a failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from engines.rollout.buffers import ChoosingBuffer, GroupBuffer, TakeRule
from engines.rollout.drivers.driver import Conversation, Driver, LiveDomain
from engines.rollout.filters import CanTeach, in_process
from engines.rollout.producer import Producer
from engines.rollout.protocols import PolicyVersion
from engines.rollout.roller import Roller
from engines.rollout.tickets import Admission, TicketSource
from engines.types import (
    AssistantTurn,
    Environment,
    Generation,
    Message,
    Problem,
    Sampling,
    Split,
    TokenIds,
    ToolCall,
    Transcript,
)
from tests.parts.sample_parts import generation_of

STOP = 0


def ids(text: str) -> list[int]:
    return [ord(c) for c in text]


class CharChat:
    """One token a character. `!name` at the start of a turn is a tool call, `?` a broken one; a
    thought stands between braces."""

    stop_token_ids = (STOP,)
    thought_end_ids = (ord("}"),)

    def decided(self, problem: Problem) -> Problem:
        return problem

    def prompt_ids(self, problem: Problem) -> list[int]:
        return ids(f"<{problem.messages[0].content}>")

    def continuation_ids(
        self,
        problem: Problem,
        turns: Sequence[Message],
        new: Sequence[Message],
        last_token: int | None,
    ) -> list[int]:
        return ids("".join(f"[{m.content}]" for m in new))

    def turn_ids(self, problem: Problem, turn: Message) -> list[int]:
        return [*ids(turn.content), STOP]

    def parse(self, problem: Problem, token_ids: TokenIds, before: TokenIds = ()) -> AssistantTurn:
        text = self.decode(token_ids)
        calls = (ToolCall(text[1:], {}),) if text.startswith("!") else ()
        return AssistantTurn(text, text, None, calls, "broken call" if text[:1] == "?" else "")

    def decode(self, token_ids: TokenIds) -> str:
        return "".join(chr(t) for t in token_ids if t != STOP)

    def text_ids(self, text: str) -> list[int]:
        return ids(text)

    def open_thought(self, problem: Problem, token_ids: TokenIds) -> bool | None:
        text = self.decode(token_ids)
        if "}" in text or (text and not text.startswith("{")):
            return False
        return True if text else None

    def thought_closing_ids(self, token_ids: TokenIds) -> list[int]:
        return ids("}")


Say = Callable[[str, Sampling], str]


class Policy:
    """Answers what `say(prompt text, sampling)` says, `delay(call number)` ticks later."""

    def __init__(self, say: Say, delay: Callable[[int], int] = lambda _: 1) -> None:
        self._say = say
        self._delay = delay
        self.version = 0
        self.answered = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.free_calls = 0
        """that are answered whether it may or not"""
        self.calls: list[tuple[str, Sampling]] = []

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        prompt = "".join(map(chr, prompt_ids))
        self.calls.append((prompt, sampling))
        number = len(self.calls)
        for _ in range(self._delay(number)):
            await asyncio.sleep(0)
        if number > self.free_calls:
            await self.may_answer.wait()
        self.answered += 1
        said = [*ids(self._say(prompt, sampling)), STOP]
        ends = [at for at, token in enumerate(said) if token in sampling.stop_token_ids]
        said = said[: ends[0] + 1] if ends else said
        cut = said[: sampling.max_new_tokens]
        finish = "stop" if len(cut) == len(said) else "length"
        made = generation_of(cut, [-0.5] * len(cut), [self.version] * len(cut), finish)
        kept = np.array([each for token in cut for each in (~token, token + 1)], np.int32)
        return replace(made, kept=kept) if sampling.keep else made


@dataclass(frozen=True)
class Verdict:
    reward: float
    breakdown: Mapping[str, float]
    reason: str = ""
    turns: Sequence[float] = ()
    weights: Mapping[str, float] = field(default_factory=dict)
    failed: bool = False


@dataclass
class Judge:
    """Scores a transcript with a function of its answer; a raising function is a failed verdict."""

    score: Callable[[str], float]
    turns: Sequence[float] = ()
    seen: list[Transcript] = field(default_factory=list)

    async def judge(self, transcript: Transcript) -> Verdict:
        self.seen.append(transcript)
        try:
            value = self.score(transcript.answer)
        except ValueError as error:
            return Verdict(0.0, {}, str(error), failed=True)
        return Verdict(value, {"outcome": value}, turns=self.turns)


class Counting:
    """Problem n of any split says `n`."""

    def __init__(self, name: str, environment: Environment | None = None) -> None:
        self._name = name
        self._environment = environment

    def problems(self, split: Split, count: int, seed: int, start: int = 0) -> list[Problem]:
        return [
            Problem(f"{self._name}/{split}/{n}", self._name, (Message("user", str(n)),), str(n))
            for n in range(start, start + count)
        ]

    def demonstrations(self, count: int, seed: int) -> list[SimpleNamespace]:
        return []

    def environment(self) -> Environment | None:
        return self._environment


def domain(
    name: str,
    score: Callable[[str], float],
    *,
    environment: Environment | None = None,
    driver: Driver | None = None,
    max_new_tokens: int = 8,
    max_turns: int = 1,
    driver_timeout_s: float | None = None,
) -> LiveDomain:
    return LiveDomain(
        name=name,
        curriculum=Counting(name, environment),
        judge=Judge(score),
        driver=driver or Conversation(environment, max_turns),
        max_new_tokens=max_new_tokens,
        driver_timeout_s=driver_timeout_s,
    )


@dataclass
class AtVersion:
    """A policy that nobody publishes."""

    version: int = 0


def producer_of(
    roller: Roller,
    domains: Sequence[LiveDomain],
    *,
    groups_per_step: int,
    group_size: int,
    oversample: float = 1.0,
    waves: int = 1,
    max_staleness: int = 0,
    policy: PolicyVersion | None = None,
    seed: int = 0,
    needs_spread: bool = True,
    rule: TakeRule | None = None,
    **more: Any,
) -> tuple[Producer, GroupBuffer]:
    """As a stage has one, with the buffer that it fills."""
    policy = policy or AtVersion()
    sizes = {"groups_per_step": groups_per_step, "max_staleness": max_staleness, "policy": policy}
    buffer = ChoosingBuffer(rule, **sizes, seed=seed) if rule else GroupBuffer(**sizes)
    source = TicketSource(domains, split="rl", seed=seed)
    admission = Admission(groups_per_step, oversample, waves, max_staleness)
    producer = Producer(
        source=source,
        admission=admission, roller=roller, buffer=buffer, policy=policy,
        group_size=group_size, temperature=1.0,
        **{"group_filter": in_process(CanTeach(needs_spread)), **more},
    )  # fmt: skip
    return producer, buffer


def roller(policy: Policy, *, context_length: int = 200, seed: int = 0) -> Roller:
    return Roller(
        generate=policy.generate, chat=CharChat(), context_length=context_length, seed=seed
    )
