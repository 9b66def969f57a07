"""What servers say of tokens that somebody else wrote: their log-probabilities, or the outputs of a
reward model's head; and what one prompt gets, for programs that ask from threads, such as an
evaluation harness; rollouts use `client.py`, which packs many turns into a request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import aiohttp
import orjson
import stamina

from engines.sglang.http import (
    NoAnswerInTime,
    NoConnection,
    Refused,
    call,
    connections,
    read_bounded,
    require_whole,
)
from engines.sglang.turn_queue import LANE_HEADER
from infra.errors import EngineError

_CONNECT_S = 30.0
_AGAIN_S = 0.5
_PATIENCE_S = 120.0
"""a lost server is back within seconds; its weights may take longer"""


def _is_passed(status: int) -> bool:
    """Return whether a server that answers so may answer otherwise later: it is lost, or busy."""
    return status >= 500 or status in (408, 429)


class _Again(Exception):
    """A server that is lost comes back."""


class Scorer:
    """Asks again while nobody answers: the caller has a time limit. For one event loop."""

    def __init__(self, router_url: str) -> None:
        self._url = router_url
        self._session: aiohttp.ClientSession | None = None
        self.last_trouble = ""
        """why the newest try failed, for who gives up"""

    async def logprob(self, ids: Sequence[int], last: int) -> float:
        """Return the logprob of the `last` tokens of a prompt together; it is longer than that.
        Raises EngineError."""
        return float(sum(await self.token_logprobs(ids, last)))

    async def token_logprobs(self, ids: Sequence[int], last: int) -> list[float]:
        """Return the logprob of each of the `last` tokens of a prompt, at temperature 1. Raises
        EngineError."""
        body = {
            "input_ids": list(ids),
            "sampling_params": {"max_new_tokens": 1, "temperature": 0.0},
            "return_logprob": True,
            "logprob_start_len": len(ids) - last - 1,
        }
        reply = await self._ask("/generate", body)
        entries: list[Any] = reply["meta_info"]["input_token_logprobs"][-last:]
        if [entry[1] for entry in entries] != list(ids[-last:]):
            raise EngineError(f"asked for {last} log-probabilities, got {str(entries)[:300]}")
        return [float(entry[0]) for entry in entries]

    async def outputs(self, ids: Sequence[int]) -> list[float]:
        """Return the outputs of the model's head after the last token. Raises EngineError."""
        # What SGLang calls an embedding is what the model has in the place of one.
        reply = await self._ask("/v1/embeddings", {"model": "model", "input": list(ids)})
        return [float(x) for x in reply["data"][0]["embedding"]]

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _ask(self, path: str, body: dict[str, Any]) -> Any:
        while True:
            try:
                return await self._post(f"{self._url}{path}", body)
            except _Again as error:
                self.last_trouble = str(error)
            await asyncio.sleep(_AGAIN_S)

    async def _post(self, url: str, body: dict[str, Any]) -> Any:
        headers = {LANE_HEADER: uuid4().hex}  # any server may take it
        sent = self._connections().post(url, data=orjson.dumps(body), headers=headers)
        try:
            async with sent as response:
                text = await read_bounded(response)
                status = response.status
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _Again(f"POST {url}: no connection: {error!r}") from error
        if _is_passed(status):
            raise _Again(f"POST {url} failed ({status}): {text[:300]!r}")
        if status >= 400:
            raise EngineError(f"POST {url} was refused ({status}): {text[:300]!r}")
        try:
            reply = orjson.loads(text)
        except ValueError:
            raise EngineError(f"POST {url} did not answer with JSON: {text[:300]!r}") from None
        try:
            require_whole(reply, self._url)
        except Refused as refused:
            if _is_passed(refused.status):
                raise _Again(str(refused)) from refused
            raise
        return reply

    def _connections(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = connections(_CONNECT_S, url=self._url)
        return self._session


@dataclass(frozen=True, slots=True)
class TokenScore:
    """A token of a prompt after those before it."""

    logprob: float
    is_likeliest: bool
    """whether no other token is more likely there"""


class TokenScorer:
    """Asks one router; calls block, and may come from several threads."""

    def __init__(self, router_url: str, timeout_s: float = 600.0) -> None:
        """`timeout_s`: what one request may take."""
        self._url, self._timeout_s = router_url, timeout_s

    def scores(self, ids: Sequence[int], last: int) -> list[TokenScore]:
        """Return the scores of the `last` tokens of a prompt, which is longer than that. Raises
        EngineError."""
        body = {
            "input_ids": list(ids),
            "sampling_params": {"max_new_tokens": 1, "temperature": 0.0},
            "return_logprob": True,
            "logprob_start_len": len(ids) - last - 1,
            "top_logprobs_num": 1,
        }
        meta = self._ask(body)["meta_info"]
        entries = list(zip(meta["input_token_logprobs"], meta["input_top_logprobs"], strict=True))
        scored = [
            TokenScore(float(own[0]), own[1] == best[0][1])
            for own, best in entries[-last:]
            if own[0] is not None
        ]
        if [own[1] for own, _ in entries[-last:]] != list(ids[-last:]) or len(scored) != last:
            raise EngineError(f"asked for {last} log-probabilities, got {str(entries)[:300]}")
        return scored

    def continued(
        self, ids: Sequence[int], count: int, temperature: float, seed: int, stops: Sequence[int]
    ) -> tuple[list[int], bool]:
        """Up to `count` further ids, and whether one of the ids `stops`, which is left out, ended
        them. Raises EngineError."""
        sampling = {"max_new_tokens": count, "temperature": temperature, "sampling_seed": seed}
        body = {"input_ids": list(ids), "sampling_params": {**sampling, "stop_token_ids": [*stops]}}
        made: list[int] = self._ask(body)["output_ids"]
        ended = bool(made) and made[-1] in stops
        return (made[:-1] if ended else made), ended

    def _ask(self, body: dict[str, Any]) -> dict[str, Any]:
        for attempt in stamina.retry_context(_may_pass, attempts=None, timeout=_PATIENCE_S):
            with attempt:
                key = {LANE_HEADER: uuid4().hex}  # any server may take it
                said = call(self._url, "/generate", body, timeout=self._timeout_s, headers=key)
                require_whole(said, self._url)
                return said
        raise AssertionError("stamina raises what the last try raised")


def _may_pass(error: Exception) -> bool:
    """Return whether another try may help: a server that was lost is started again."""
    if isinstance(error, Refused):
        return _is_passed(error.status)
    return isinstance(error, NoConnection | NoAnswerInTime)
