"""A gateway with sessions of a scripted policy: `python -m tests.programs.bench.agent_gateway N`.

Prints its address and the keys, serves until its input ends, and prints the processor time that it
used with the number of tokens that were sampled. An answer begins with the seconds that the policy
took. A token is four characters.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import random
import sys
import time
from collections.abc import Sequence

import numpy as np

from engines.agents.agent_session import AgentSession
from engines.agents.gateway import Gateway, GatewayServer
from engines.agents.limits import SessionLimits
from engines.rollout.drivers.session_host import Attempt, SessionHost
from engines.types import AssistantTurn, Generation, Message, Problem, Sampling, TokenIds
from engines.weight_versions import WeightVersions

TOKENS = 500
"""of an answer, at least"""
SAID = "the policy says this, " * (4 * TOKENS // 22)
WAITS = (0.5, 1.5)
"""seconds that the policy takes, from and to"""
_STOP = 0
_PROBLEM = Problem("bench", "bench", (Message("user", "task"),))


class _Chat:
    """Four characters a token, in the order in which they were first seen."""

    stop_token_ids = (_STOP,)
    thought_end_ids: tuple[int, ...] = ()

    def __init__(self) -> None:
        self._ids: dict[str, int] = {"": _STOP}
        self._texts = [""]

    def encode(self, text: str) -> list[int]:
        found: list[int] = []
        for at in range(0, len(text), 4):
            piece = text[at : at + 4]
            if piece not in self._ids:
                self._ids[piece] = len(self._texts)
                self._texts.append(piece)
            found.append(self._ids[piece])
        return found

    def decided(self, problem: Problem) -> Problem:
        return problem

    def prompt_ids(self, problem: Problem) -> list[int]:
        return self.encode("".join(m.content for m in problem.messages))

    def continuation_ids(
        self,
        problem: Problem,
        turns: Sequence[Message],
        new: Sequence[Message],
        last_token: int | None,
    ) -> list[int]:
        return self.encode("".join(m.content for m in new))

    def turn_ids(self, problem: Problem, turn: Message) -> list[int]:
        return [*self.encode(turn.content), _STOP]

    def parse(self, problem: Problem, token_ids: TokenIds, before: TokenIds = ()) -> AssistantTurn:
        text = self.decode(token_ids)
        return AssistantTurn(text, text, None, ())

    def decode(self, token_ids: TokenIds) -> str:
        return "".join([self._texts[token] for token in token_ids])

    def text_ids(self, text: str) -> list[int]:
        return self.encode(text)

    def open_thought(self, problem: Problem, token_ids: TokenIds) -> bool:
        return False

    def thought_closing_ids(self, token_ids: TokenIds) -> list[int]:
        return []


class _Policy:
    """Takes between half a second and one and a half, and always says the same."""

    def __init__(self, chat: _Chat) -> None:
        self._chat = chat
        self._random = random.Random(0)
        self.tokens = 0

    async def generate(self, prompt_ids: TokenIds, sampling: Sampling) -> Generation:
        began = time.perf_counter()
        await asyncio.sleep(self._random.uniform(*WAITS))
        said = f"{time.perf_counter() - began:.6f}\n{SAID}"
        ids = np.array([*self._chat.encode(said), _STOP], np.int32)
        self.tokens += len(ids)
        versions = WeightVersions.of_runs([(0, len(ids))])
        return Generation(ids, np.zeros(len(ids), np.float32), versions, "stop")


async def _serve(count: int) -> None:
    chat = _Chat()
    policy = _Policy(chat)
    gateway = Gateway()
    server = GatewayServer(gateway)
    await server.start()
    keys: list[str] = []
    for index in itertools.islice(itertools.count(), count):
        attempt = Attempt(
            _PROBLEM, "bench", chat.prompt_ids(_PROBLEM), "g", index, "g", 1.0, 10**6, 0, 10**7
        )
        host = SessionHost(policy.generate, chat, attempt)
        keys.append(gateway.open(AgentSession(host, _PROBLEM, SessionLimits(turn_tokens=10_000))))
    gc.collect()
    gc.freeze()  # as a stage does that has leased its servers
    began = time.process_time()
    print(json.dumps({"url": f"http://{server.address}", "keys": keys}), flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    used = time.process_time() - began
    print(json.dumps({"cpu_seconds": used, "tokens": policy.tokens}), flush=True)
    await server.close()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
