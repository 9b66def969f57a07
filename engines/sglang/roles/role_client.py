"""RoleClient: asks the model of one served role, as rewards do (`rewards.judges.served.AsksModel`).

A call waits for a place, and only then does its time begin: many rollouts may end at once, and a
judge that is behind with them is none that hangs. So a slow judge delays the groups that it judges
and no other.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from engines.chat import Chat
from engines.sglang.client import GenerationClient
from engines.sglang.roles.token_scores import Scorer
from engines.types import Message, Problem, Sampling
from infra.errors import EngineError, InputError

MOST_ASKED = 64
"""at one server at once, where a recipe does not say"""


@dataclass(frozen=True, slots=True)
class RoleAddress:
    """The address of one role's running servers."""

    router_url: str
    max_batch: int
    """turns in one request"""
    most_asked: int
    """at all servers together, by everybody who shares this address"""
    chat_files: Mapping[str, bytes]
    """of the model's folder"""
    context_length: int

    def shared_by(self, clients: int) -> RoleAddress:
        """Return the address for one of so many clients."""
        return replace(self, most_asked=max(self.most_asked // clients, 1))


class RoleClient:
    """Made before its servers are leased; `connect` when they run. For one event loop."""

    def __init__(self, role: str) -> None:
        self._role = role
        self._open: _Connected | None = None

    async def connect(self, address: RoleAddress) -> None:
        """Raises InputError for a model without a usable tokenizer or chat template."""
        chat = await asyncio.to_thread(_chat, address)
        self._open = _Connected(address, chat)

    def refuse(self, reason: Exception) -> None:
        """Fail every call from now on: the servers may be someone else's by now."""
        if self._open is not None:
            self._open.client.refuse(reason)

    async def close(self) -> None:
        if self._open is not None:
            await self._open.client.close()
            await self._open.scorer.close()

    async def answer(
        self,
        problem: Problem,
        *,
        max_new_tokens: int,
        temperature: float,
        seed: int,
        timeout_s: float,
    ) -> tuple[str, bool]:
        """Return what the model says next, without its thought, and whether that is all of it: of a
        turn that was cut off or is broken, a thought may be in it. Raises InputError, EngineError.
        """
        held = self._connected
        problem = held.chat.decided(problem)
        prompt = held.chat.prompt_ids(problem)
        self._check_length(len(prompt) + max_new_tokens)
        sampling = Sampling(
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            stop_token_ids=held.chat.stop_token_ids,
            seed=seed,
            is_last=True,
            route=problem.id,
        )
        async with self._place(timeout_s):
            made = await held.client.generate(prompt, sampling)
        if made.finish == "abort":
            raise EngineError(f"{self._role}: its answer was interrupted")
        said = held.chat.parse(problem, made.token_ids)
        return said.content, made.finish == "stop" and not said.error

    async def choice_logprobs(
        self, problem: Problem, choices: Sequence[str], *, timeout_s: float
    ) -> list[float]:
        """Return the logprob of each choice as the beginning of its answer. Raises InputError,
        EngineError."""
        chat, scorer = self._connected.chat, self._connected.scorer
        problem = chat.decided(problem)
        if problem.thinking:
            raise InputError(
                f"{self._role}: {chat.mode.describe(problem.thinking)}, and `choices` are read"
                " where an answer begins: give a `pattern`, by which the answer after the thought"
                " is read, or serve a model that does not think"
            )
        prompt = chat.prompt_ids(problem)
        written = [_without_stop(chat, problem, choice) for choice in choices]
        self._check_length(len(prompt) + max(map(len, written)) + 1)
        async with self._place(timeout_s):
            asked = [scorer.logprob([*prompt, *ids], len(ids)) for ids in written]
            return list(await asyncio.gather(*asked))

    async def token_logprobs(
        self, ids: Sequence[int], last: int, *, timeout_s: float
    ) -> list[float]:
        """Return the logprob of each of the `last` tokens of a text. Raises InputError,
        EngineError."""
        self._check_length(len(ids) + 1)
        async with self._place(timeout_s):
            return await self._connected.scorer.token_logprobs(ids, last)

    async def outputs(
        self, problem: Problem, turns: Sequence[Message], *, timeout_s: float
    ) -> list[float]:
        """Return the outputs of a reward model's head. Raises InputError, EngineError."""
        held = self._connected
        ids, _ = held.chat.training_ids(problem, turns)
        self._check_length(len(ids))
        async with self._place(timeout_s):
            return await held.scorer.outputs(ids)

    @property
    def _connected(self) -> _Connected:
        if self._open is None:
            raise EngineError(f"the servers of role {self._role} are not leased")
        return self._open

    def _check_length(self, tokens: int) -> None:
        longest = self._connected.address.context_length
        if tokens > longest:
            raise InputError(
                f"{self._role}: {tokens} tokens with its answer, and it takes {longest}: shorten"
                " the prompt, or raise `context_length` of its `fleet`"
            )

    @asynccontextmanager
    async def _place(self, timeout_s: float) -> AsyncGenerator[None]:
        """One of those at the servers. Raises EngineError after the time."""
        held = self._connected
        if held.client.refusal is not None:
            raise held.client.refusal
        async with held.places:
            try:
                async with asyncio.timeout(timeout_s):
                    yield
            except TimeoutError:
                why = f" ({held.scorer.last_trouble})" if held.scorer.last_trouble else ""
                raise EngineError(
                    f"{self._role}: no answer within timeout_s {timeout_s:g}{why}"
                ) from None


class _Connected:
    """What there is once the servers run."""

    def __init__(self, address: RoleAddress, chat: Chat) -> None:
        self.address, self.chat = address, chat
        self.client = GenerationClient(address.router_url, max_batch=address.max_batch)
        self.scorer = Scorer(address.router_url)
        self.places = asyncio.Semaphore(address.most_asked)


def _chat(address: RoleAddress) -> Chat:
    with tempfile.TemporaryDirectory() as folder:
        for name, content in address.chat_files.items():
            (Path(folder) / name).write_bytes(content)
        return Chat.load(Path(folder))


def _without_stop(chat: Chat, problem: Problem, said: str) -> list[int]:
    ids = chat.turn_ids(problem, Message("assistant", said))
    return ids[:-1] if ids[-1] in chat.stop_token_ids else ids
