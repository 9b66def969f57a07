"""Generation through the router: many concurrent turns in, few batched requests out.

Turns asked for in the same tick of the event loop travel in one HTTP request of up to `max_batch`
sequences: that saves 40% against one request each. Which of them, and to which server, is said in
`turn_queue.py`. A turn is a pure function of prompt, sampling (with its seed) and weights, and one
answer is taken for it, so repeating a batch doubles nothing, and where it runs changes nothing.
A turn whose caller is cancelled is aborted at the servers.
"""

from __future__ import annotations

import asyncio
import random
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import uuid4

import aiohttp
import numpy as np
import orjson

from engines.sglang import last_turn
from engines.sglang.aborts import Aborts
from engines.sglang.in_flight import InFlight
from engines.sglang.progress import STALL_S, Progress
from engines.sglang.routed_batch import names_of, pack
from engines.sglang.spec import MOST_RUNNING, Routing
from engines.sglang.turn_queue import LANE_HEADER, AskedTurn, Batch, TurnQueue
from engines.types import Finish, Generation, Sampling, TokenIds
from engines.weight_versions import BROKEN_WEIGHTS, WeightVersions
from infra.errors import EngineError
from infra.server_keys import bearer_of

_TRIES = 5
"""without a connection, or lost on the way: the router ended, and a new one has another address"""
_PATIENCE_S = 60.0
"""where the router answers for servers that do not: a lost server is back within seconds"""
_CONNECT_S = 30.0
_FIRST_WAIT_S = 0.2
_LONGEST_WAIT_S = 1.0
_MOST_CONNECTIONS = 16_384
"""to one address there are some 28,000 local ports"""
_FINISH: dict[str, Finish] = {"stop": "stop", "length": "length", "abort": "abort"}


class _Retryable(EngineError):
    """Worth another try."""


class _Refused(_Retryable):
    """A server's own fault (5xx), a full queue, or an answer that no engine gives."""


class _NoConnection(_Retryable):
    """Nobody listens at the router's address, or the connection broke."""


class _Lost(_Retryable):
    """The connection stands, and no answer will come through it."""


@dataclass(slots=True)
class ClientCounts:
    """What a client did so far."""

    turns: int = 0
    requests: int = 0
    retries: int = 0
    new_tokens: int = 0
    prompt_tokens: int = 0
    """of answered turns: all that was before each"""
    cached_tokens: int = 0
    """of those, what a server had in its prefix cache"""


class GenerationClient:
    """Generates turns at one router. Make and use it in one event loop; `close` it there."""

    def __init__(
        self,
        router_url: str,
        *,
        max_batch: int = 16,
        routing: Routing = "spread",
        most_turns: int = MOST_RUNNING,
        stall_s: float = STALL_S,
    ) -> None:
        """`max_batch`: turns in a request; 1 for servers without our plugin. `most_turns`: at the
        servers at once; others wait here, as long as those make progress. `stall_s`: how long a
        request may make no progress, beside the time of its tokens."""
        self.router_url = router_url
        self.counts = ClientCounts()
        self.on_trouble: Callable[[], object] = lambda: None
        """called before each further try"""
        self.must_wait: Callable[[], bool] = lambda: False
        """whether lost servers have to wait for their weights: that time does not count"""
        self.max_batch, self.most_turns = max_batch, most_turns
        self.routing: Routing = routing
        self._progress = Progress(stall_s)
        self._session: aiohttp.ClientSession | None = None
        self._connected = asyncio.Semaphore(most_connections())
        """requests without a place wait here; aborts need none"""
        self._key: dict[str, str] = {}
        self._aborts = Aborts(router_url, self._connections)
        self._queue = TurnQueue(max_batch, routing, most_turns)
        self._will_flush = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.refusal: Exception | None = None
        """why every further turn fails; None: turns are answered"""
        self.in_flight = InFlight()
        """the turns under way"""

    async def generate(self, prompt_ids: TokenIds, sampling: Sampling) -> Generation:
        """One turn. Raises EngineError when the engine refuses it or stays away.

        Log-probabilities are those of the distribution that was sampled from, i.e. after division
        by the temperature (greedy: of the untempered one), before top-p cuts it. Without a seed one
        is drawn here, because SGLang gives all unseeded requests the same one.
        """
        if self.refusal is not None:
            raise self.refusal
        future: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        self._queue.add(AskedTurn(prompt_ids, sampling, future))
        self._flush_soon()
        with self.in_flight.turn():
            return await future

    def refuse(self, reason: Exception) -> None:
        """Fail every turn asked for from now on: the servers may be someone else's by now."""
        self.refusal = reason

    async def close(self) -> None:
        """Cancel what waits or is under way, also at the servers, and close the connections."""
        for turn in self._queue.take_all():
            turn.generation.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._aborts.close()
        if self._session is not None:
            await self._session.close()

    async def __aenter__(self) -> GenerationClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _flush_soon(self) -> None:
        """At the end of this tick, together with what else is asked for in it."""
        if not self._will_flush:
            self._will_flush = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        """Send what was asked for since the last tick, as far as there are places for it."""
        self._will_flush = False
        if self.refusal is not None:
            for turn in self._queue.take_all():
                turn.generation.set_exception(self.refusal)
        for batch in self._queue.take():
            task = asyncio.create_task(self._settle(batch))
            self._tasks.add(task)
            task.add_done_callback(partial(self._over, batch))

    def _over(self, batch: Batch, task: asyncio.Task[None]) -> None:
        """Its places are for those who wait."""
        self._tasks.discard(task)
        self._queue.give_back(batch)
        if self._queue.num_waiting:
            self._flush_soon()

    async def _settle(self, batch: Batch) -> None:
        """Answer every turn of a batch, or fail every one of them."""
        try:
            async with self._connected:
                await self._answer(batch)
        except asyncio.CancelledError:
            for turn in batch.turns:
                turn.generation.cancel()
            raise
        except Exception as error:
            for turn in batch.turns:
                if not turn.is_over:
                    turn.generation.set_exception(error)

    async def _answer(self, batch: Batch) -> None:
        """Answer a batch, tried for as long as a lost server may take to come back."""
        tries, lost, refused_since = 0, 0, time.monotonic()
        while waiting := [turn for turn in batch.turns if not turn.is_over]:
            tries, began = tries + 1, time.monotonic()
            try:
                await self._try(waiting, batch.lane)
                return
            except _Retryable as error:
                now = time.monotonic()
                was_served = now - began > _PATIENCE_S  # its server ended while it generated
                lost += was_served or not isinstance(error, _Refused)
                refused_since = now if was_served or self.must_wait() else refused_since
                if lost == _TRIES or now - refused_since > _PATIENCE_S:
                    raise EngineError(f"gave up after {tries} tries: {error}") from error
            self.counts.retries += 1
            self.on_trouble()
            wait = min(_FIRST_WAIT_S * 2 ** (tries - 1), _LONGEST_WAIT_S)
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))

    async def _try(self, turns: list[AskedTurn], lane: str) -> None:
        """One try, for as long as the engine makes progress."""
        name = uuid4().hex
        request = self._progress.begin(max(turn.sampling.max_new_tokens for turn in turns))
        body = _body(name, turns, self.max_batch > 1)
        post = asyncio.create_task(self._post(body, lane or name))
        futures = [turn.generation for turn in turns]
        with self._aborts.watch(post, dict(zip(names_of(name, len(turns)), futures, strict=True))):
            while not post.done():
                left = self._progress.seconds_left(request)
                if left <= 0 and self.must_wait():  # for a publish, perhaps
                    left = _LONGEST_WAIT_S
                if left <= 0:
                    raise _Lost(
                        f"POST {self.router_url}/generate: a request of up to {request.max_tokens}"
                        f" tokens made no progress in {self._progress.allowed_seconds(request):.0f}"
                        " s"
                    )
                await asyncio.wait({post}, timeout=left)
            made = _read(post.result(), turns)
            longest = max((len(answer.generation.token_ids) for answer in made), default=0)
            self._progress.answer(request, longest)
            for answer in made:
                self._count(answer)
                answer.turn.generation.set_result(answer.generation)

    def _count(self, answer: _Answer) -> None:
        counts = self.counts
        counts.turns += 1
        counts.new_tokens += len(answer.generation.token_ids)
        counts.prompt_tokens += len(answer.turn.prompt_ids)
        counts.cached_tokens += answer.cached_tokens

    async def _post(self, body: bytes, lane: str) -> bytes:
        self.counts.requests += 1
        url = f"{self.router_url}/generate"
        session, headers = self._connections(), self._key | {LANE_HEADER: lane}
        try:
            async with session.post(url, data=body, headers=headers) as response:
                text = await response.read()
                status = response.status
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _NoConnection(f"POST {url}: no connection: {error!r}") from error
        if status >= 400:
            kind = _Refused if status >= 500 or status in (408, 429) else EngineError
            raise kind(f"POST {url} was refused ({status}): {text[:500].decode(errors='replace')}")
        return text

    def _connections(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
                headers={"Content-Type": "application/json"},
            )
            self._key = bearer_of(self.router_url)
        return self._session


def most_connections() -> int:
    """One client's: half of the files that this process may open, as others open some, too."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_CONNECTIONS if files < 0 else max(1, min(files // 2, _MOST_CONNECTIONS))


def _body(name: str, turns: Sequence[AskedTurn], for_plugin: bool) -> bytes:
    """Of a request of that name."""
    prompts = [turn.prompt_ids for turn in turns]
    parameters = [_parameters(turn.sampling) for turn in turns]
    packed = pack(prompts, parameters, name, for_plugin=for_plugin)
    return orjson.dumps(packed, option=orjson.OPT_SERIALIZE_NUMPY)


def _parameters(sampling: Sampling) -> dict[str, Any]:
    """SGLang's names for a Sampling."""
    seed = random.getrandbits(31) if sampling.seed is None else sampling.seed
    parameters: dict[str, Any] = {
        "max_new_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "sampling_seed": seed,
    }
    if sampling.top_p < 1:
        parameters["top_p"] = sampling.top_p
    if sampling.stop_token_ids:
        parameters["stop_token_ids"] = list(sampling.stop_token_ids)
    if sampling.is_last:
        last_turn.mark(parameters)
    return parameters


@dataclass(frozen=True, slots=True)
class _Answer:
    turn: AskedTurn
    generation: Generation
    cached_tokens: int
    """of its prompt"""


def _read(text: bytes, turns: Sequence[AskedTurn]) -> list[_Answer]:
    """What a reply has for turns that are waited for, checked against what was asked."""
    try:
        # [[p, id, null], [p, id, null]] -> [[p, id, p, id, null]]: a list for each token would
        # cost several times as much as its numbers.
        replies: list[Any] = orjson.loads(text.replace(b",null],[", b","))
        if len(replies) != len(turns):
            raise EngineError(f"asked for {len(turns)} turns, got {str(replies)[:300]}")
        return [
            _Answer(turn, _parse(reply, turn.sampling), reply["meta_info"].get("cached_tokens", 0))
            for reply, turn in zip(replies, turns, strict=True)
            if not turn.is_over
        ]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise _Refused(f"this is not a valid engine answer ({error!r}): {text[:300]!r}") from error


def _parse(reply: dict[str, Any], sampling: Sampling) -> Generation:
    """One sequence of a reply, checked against what was asked for."""
    token_ids: list[int] = reply["output_ids"]
    meta = reply["meta_info"]
    finish = _FINISH.get(meta["finish_reason"]["type"])
    if finish is None:
        raise EngineError(f"unknown finish reason {meta['finish_reason']}")
    if finish == "abort" and meta["finish_reason"].get("status_code"):
        raise EngineError(f"the engine refused a turn: {meta['finish_reason'].get('message')}")
    scored_ids, logprobs = _scored(meta.get("output_token_logprobs") or [])
    if scored_ids != token_ids or len(token_ids) > sampling.max_new_tokens:
        raise EngineError(
            f"the engine answered {len(token_ids)} tokens with {len(logprobs)} log-probabilities"
            f" for at most {sampling.max_new_tokens} tokens"
        )
    return Generation(
        token_ids=np.array(token_ids, np.int32),
        logprobs=np.array(logprobs, np.float32),
        weight_versions=_versions(meta, len(token_ids)),
        finish=finish,
    )


def _scored(entries: list[list[Any]]) -> tuple[list[int], list[float]]:
    """Ids and log-probabilities of [[p, id, null], ...], whether `_read` joined the lists or not
    (an engine that writes spaces)."""
    if len(entries) == 1:
        return entries[0][1::2], entries[0][:-1:2]
    return [entry[1] for entry in entries], [entry[0] for entry in entries]


def _versions(meta: dict[str, Any], num_tokens: int) -> WeightVersions:
    """The weight version of each token; the engine reports spans when it changed on the way."""
    spans: list[dict[str, Any]] = meta.get("weight_versions") or [
        {"version": meta["weight_version"], "start": 0, "end": num_tokens}
    ]
    versions = WeightVersions.of_runs(
        (_version(span["version"]), span["end"] - span["start"]) for span in spans
    )
    if len(versions) != num_tokens:
        raise EngineError(f"weight versions {spans} do not cover {num_tokens} tokens")
    return versions


def _version(text: str) -> int:
    if text == BROKEN_WEIGHTS:
        raise _Refused(f"its weights are {text}: they may be half new")
    try:
        return int(text)
    except ValueError:
        raise EngineError(
            f"the engine's weight version is {text!r}, not a number: its weights did not come"
            " from this fleet"
        ) from None
