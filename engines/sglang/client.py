"""Generation through the router: many concurrent turns in, few batched requests out.

Turns asked for in the same tick of the event loop travel in one HTTP request of up to `max_batch`
sequences: that saves 40% against one request each. Which of them, and to which server, is said in
`turn_queue.py`. Each is answered when it is done (`answers.py`). A turn is a pure function of
prompt, sampling (with its seed) and weights, and one answer is taken for it, so repeating a batch
doubles nothing, and where it runs changes nothing. A turn whose caller is cancelled is aborted at
the servers.
"""

from __future__ import annotations

import asyncio
import random
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import aiohttp
import orjson

from engines.sglang import prefix_cache
from engines.sglang.aborts import Aborts
from engines.sglang.answers import (
    MOST_OF_TURN,
    Answer,
    NoConnection,
    Refused,
    Retryable,
    events_of,
    read_event,
    read_list,
    refusal,
)
from engines.sglang.http import connections, read_bounded
from engines.sglang.routed_batch import names_of, pack
from engines.sglang.spec import MOST_RUNNING, Routing
from engines.sglang.turn_queue import (
    LANE_HEADER,
    STALL_S,
    AskedTurn,
    Batch,
    InFlight,
    Progress,
    SentRequest,
    TurnQueue,
)
from engines.types import Generation, Sampling, TokenIds
from infra.errors import EngineError

_TRIES = 5
"""without a connection, or lost on the way: the router ended, and a new one has another address"""
_PATIENCE_S = 180.0
"""where the router answers for servers that do not: a lost server is back within seconds, on a
machine that others use within a minute or two"""
_SERVED_S = 20.0
"""a try that took longer had a server, which ended while it generated: a router that has none says
so at once, or after a few tries of its own"""
_CONNECT_S = 30.0
_FIRST_WAIT_S = 0.2
_LONGEST_WAIT_S = 1.0
_MOST_CONNECTIONS = 16_384
"""to one address there are some 28,000 local ports"""


class _Lost(Retryable):
    """The connection stands, and no answer will come through it."""


@dataclass(slots=True)
class ClientCounts:
    """Counts what a client did so far."""

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
        with_experts: bool = False,
    ) -> None:
        """`max_batch`: turns in a request; 1 for servers without our plugin. `most_turns`: at the
        servers at once; others wait here, as long as those make progress. `stall_s`: how long a
        request may make no progress, beside the time of its tokens. `with_experts`: servers of ours
        that can, say which experts they chose."""
        self.router_url = router_url
        self.counts = ClientCounts()
        self.on_trouble: Callable[[], object] = lambda: None
        """called before each further try"""
        self.must_wait: Callable[[], bool] = lambda: False
        """whether lost servers have to wait for their weights: that time does not count"""
        self.max_batch, self.most_turns = max_batch, most_turns
        self.routing: Routing = routing
        self.with_experts = with_experts
        self._progress = Progress(stall_s)
        self._session: aiohttp.ClientSession | None = None
        self._connected = asyncio.Semaphore(most_connections())
        """requests without a place wait here; aborts need none"""
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
        by the temperature (greedy: of the untempered one), over the tokens that `sampling.keep`
        leaves. Without a seed one is drawn here, as SGLang gives all unseeded requests one seed.
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
            for turn in batch.turns:
                turn.generation.add_done_callback(self._over)
            task = asyncio.create_task(self._settle(batch))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _over(self, _: asyncio.Future[Generation]) -> None:
        """A turn is answered or given up: its place is for one that waits."""
        self._queue.give_back()
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
        tries, lost, refused_since = 0, 0, float("inf")
        while waiting := [turn for turn in batch.turns if not turn.is_over]:
            tries, began = tries + 1, time.monotonic()
            try:
                await self._try(waiting, batch.lane)
                return
            except Retryable as error:
                now = time.monotonic()
                was_served = now - began > _SERVED_S
                lost += was_served or not isinstance(error, Refused)
                is_new = was_served or self.must_wait()
                refused_since = now if is_new else min(refused_since, now)
                if lost == _TRIES or now - refused_since > _PATIENCE_S:
                    raise EngineError(f"gave up after {tries} tries: {error}") from error
            self.counts.retries += 1
            self.on_trouble()
            wait = min(_FIRST_WAIT_S * 2 ** min(tries - 1, 30), _LONGEST_WAIT_S)
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))

    async def _try(self, turns: list[AskedTurn], lane: str) -> None:
        """One try, for as long as the engine makes progress."""
        name = uuid4().hex
        request = self._progress.begin(max(turn.sampling.max_new_tokens for turn in turns))
        post = asyncio.create_task(self._post(name, turns, lane or name, request))
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
            post.result()

    async def _post(
        self, name: str, turns: Sequence[AskedTurn], lane: str, request: SentRequest
    ) -> None:
        """Send a request of that name, and answer each of its turns when it is done."""
        self.counts.requests += 1
        url = f"{self.router_url}/generate"
        session, headers = self._connections(), {LANE_HEADER: lane}
        body = _body(name, turns, self.max_batch > 1, self.with_experts)
        try:
            async with session.post(url, data=body, headers=headers) as response:
                if response.status >= 400:
                    told = await read_bounded(response)
                    raise refusal(response.status, told.decode(errors="replace"))
                if len(turns) == 1:
                    for answer in read_list(await read_bounded(response, MOST_OF_TURN), turns):
                        self._take(answer, request)
                    return
                async for event in events_of(response.content):
                    for answer in read_event(event, turns):
                        self._take(answer, request)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise NoConnection(f"POST {url}: no connection: {error!r}") from error
        if missing := sum(not turn.is_over for turn in turns):
            raise EngineError(f"POST {url}: asked for {len(turns)} turns, {missing} had no answer")

    def _take(self, answer: Answer, request: SentRequest) -> None:
        if answer.turn.is_over:
            return
        counts, num_tokens = self.counts, len(answer.generation.token_ids)
        lacks_experts = answer.generation.experts is None and answer.generation.finish != "abort"
        if self.with_experts and num_tokens and lacks_experts:
            raise EngineError("a server answered tokens without the experts that it chose for them")
        self._progress.answer(request, num_tokens)
        counts.turns += 1
        counts.new_tokens += num_tokens
        counts.prompt_tokens += len(answer.turn.prompt_ids)
        counts.cached_tokens += answer.cached_tokens
        answer.turn.generation.set_result(answer.generation)

    def _connections(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = connections(_CONNECT_S, url=self.router_url)
        return self._session


def most_connections() -> int:
    """One client's: half of the files that this process may open, as others open some, too."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_CONNECTIONS if files < 0 else max(1, min(files // 2, _MOST_CONNECTIONS))


def _body(name: str, turns: Sequence[AskedTurn], for_plugin: bool, with_experts: bool) -> bytes:
    """Pack the body of a request of that name."""
    prompts = [turn.prompt_ids for turn in turns]
    parameters = [_parameters(turn.sampling) for turn in turns]
    experts_from = [turn.sampling.experts_from for turn in turns] if with_experts else None
    packed = pack(
        prompts,
        parameters,
        name,
        for_plugin=for_plugin,
        stream=len(turns) > 1,
        experts_from=experts_from,
    )
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
    if sampling.keep is not None:
        parameters |= sampling.keep.model_dump()
    if sampling.stop_token_ids:
        parameters["stop_token_ids"] = list(sampling.stop_token_ids)
    if sampling.is_last:
        prefix_cache.mark_last_turn(parameters)
    return parameters
