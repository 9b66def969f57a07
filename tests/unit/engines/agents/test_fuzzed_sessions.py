"""1,000 sessions of harnesses that drift, branch, retry, compact, edit and leave.

Every sampled token has a number of its own (its log-probability), by which it is followed into the
samples: none may be trained that was not delivered, none twice, and what was delivered and is not
trained is signal lost, counted by its reason.
"""

from __future__ import annotations

import asyncio
import json
import random
import unicodedata
from collections import Counter
from dataclasses import replace
from typing import Any, cast

import pytest

from engines.agents.agent_session import AgentSession
from engines.agents.incremental_prompt import Drift
from engines.agents.limits import SessionLimits
from engines.agents.wire.wire_format import Refusal, Request
from engines.rollout.drivers.session_host import End
from engines.types import Message, Status, ToolCall
from tests.parts.agent_parts import Script, session_of

pytestmark = pytest.mark.unit

SESSIONS = 1000
WORDS = ("caf\u00e9", "look  at", "the\ncode", "done", "A\u030angstr\u00f6m", "x = 1")


class Harness:
    """One program with several conversations, which forgets and changes what it was told."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.script = Script(self._say)
        self.session: AgentSession = session_of(self.script, SessionLimits(turn_tokens=400))
        self.known: list[tuple[Message, ...]] = []
        """conversations that end with an answer"""
        self.delivered: Counter[int] = Counter()
        """numbers of tokens whose answer reached us"""
        self._said = 0

    def _say(self, prompt: str) -> str:
        self._said += 1
        words = [self.random.choice(WORDS) for _ in range(self.random.randint(1, 6))]
        # Sometimes the same again: two turns of one meaning.
        number = self._said if self.random.random() < 0.8 else 0
        thought = (
            f"<think>{self.random.choice(WORDS)}</think>" if self.random.random() < 0.5 else ""
        )
        call = {"b": number, "a": self.random.choice(WORDS), "c": [1.0, None]}
        calls = f"\n!edit {json.dumps(call)}" if self.random.random() < 0.5 else ""
        return f"{thought}{' '.join(words)} {number}{calls}"

    async def act(self) -> None:
        """One or two requests."""
        choose = self.random.random()
        if not self.known or choose < 0.1:
            await self.ask((Message("user", f"task {self.random.randint(0, 2)}"),))
            return
        said = self.random.choice(self.known[-3:])
        more = (*said, self._next_message())
        if choose < 0.2:
            await asyncio.gather(
                self.ask(self.drifted(more)), self.ask((*said, self._next_message()))
            )
        elif choose < 0.3:
            await self.ask(more)
            await self.ask(more)
        elif choose < 0.4:
            await self.ask(more, leaves=self.random.choice(("early", "late")))
        elif choose < 0.5:
            summary = " ".join(m.content for m in said)[:200]
            await self.ask((Message("system", "short"), Message("user", summary)))
        elif choose < 0.55:
            await self.ask((*said[:-1], replace(said[-1], content="edited"), more[-1]))
        else:
            await self.ask(self.drifted(more))

    def _next_message(self) -> Message:
        role = self.random.choice(("tool", "user"))
        return Message(role, f"{self.random.choice(WORDS)} {self.random.randint(0, 3)}")

    def drifted(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        return tuple(self._drifted(m) if m.role == "assistant" else m for m in messages)

    def _drifted(self, message: Message) -> Message:
        changed = message
        if self.random.random() < 0.2:
            changed = replace(changed, content=f" {changed.content}\n".replace(" ", "  "))
        if self.random.random() < 0.2:
            form = self.random.choice(("NFD", "NFC"))
            changed = replace(changed, content=unicodedata.normalize(form, changed.content))
        if self.random.random() < 0.3:
            changed = replace(changed, reasoning=None)
        if self.random.random() < 0.2:
            calls = [
                ToolCall(c.name, dict(sorted(c.arguments.items()))) for c in changed.tool_calls
            ]
            changed = replace(changed, tool_calls=tuple(calls))
        return changed

    async def ask(self, messages: tuple[Message, ...], leaves: str = "") -> None:
        if leaves == "early":
            self.script.delay_s = 30.0
            task = asyncio.create_task(self.ask(messages))
            await asyncio.sleep(0.001)
            task.cancel()
            await asyncio.wait({task})
            self.script.delay_s = 0.0
            return
        try:
            async with self.session.turn(Request(messages)) as answer:
                if leaves == "late":
                    raise ConnectionError
                self.known.append((*messages, answer.said.message()))
                self._note(answer.number)
        except (ConnectionError, Refusal):
            pass

    def _note(self, number: int) -> None:
        turn = next(t for t in self.session.tree.turns if t.number == number)
        assert turn.line is not None
        own = slice(turn.begin, turn.end)
        self.delivered.update((-turn.line.logprobs[own]).astype(int).tolist())


async def fuzz(seed: int, found: Counter[str]) -> None:
    harness = Harness(seed)
    for _ in range(harness.random.randint(3, 12)):
        await harness.act()
    rollout = harness.session.finish(End(Status.COMPLETED), {})
    trained: Counter[int] = Counter()
    for sample in rollout.samples:
        numbers = (-sample.logprobs[sample.loss_mask]).astype(int).tolist()
        trained.update(numbers)
        sampled = [harness.script.sampled[number] for number in numbers]
        found["never sampled"] += sampled != sample.tokens[sample.loss_mask].tolist()
    found["tokens"] += harness.delivered.total()
    found["not delivered"] += (trained - harness.delivered).total()
    found["twice"] += sum(count > 1 for count in trained.values())
    found["lost"] += (harness.delivered - trained).total()
    note = cast("dict[str, Any]", rollout.samples[0].metadata.get("session", {}))
    record = note.get("whole", {})
    found.update(record.get("drift", {}))
    found.update(record.get("kinds", {}))
    found["samples"] += len(rollout.samples)


def test_1000_sessions_train_each_delivered_token_once() -> None:
    found: Counter[str] = Counter()

    async def every() -> None:
        for seed in range(SESSIONS):
            await fuzz(seed, found)

    asyncio.run(every())
    print(dict(found))
    assert found["never sampled"] == found["not delivered"] == found["twice"] == 0
    assert found["lost"] < 0.01 * found["tokens"]
    for kind in ("retry", "branch", "continued", "new conversation", "edited history"):
        assert found[kind] > 100, kind
    for reason in (Drift.SPACE, Drift.UNICODE, Drift.KEY_ORDER, Drift.THOUGHT):
        assert found[str(reason)] > 100, reason
