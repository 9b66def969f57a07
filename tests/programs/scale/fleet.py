"""Simulated servers behind a simulated router, and the real client in front of it.

The client collects turns and deals them out in requests as it always does; only what a request
does on its way is simulated. The router gives requests to servers in turn, and to none that lacks
the present weights. A server that is lost takes its requests with it.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Mapping, Sequence

import numpy as np

from engines.sglang.client import GenerationClient
from engines.sglang.turn_queue import AskedTurn, Batch
from engines.types import Generation
from engines.weight_versions import WeightVersions
from infra.errors import EngineError
from tests.programs.scale.server import ServerLost, ServerSpeed, SimulatedServer
from tests.programs.scale.workload import MOST_TOKENS, PROMPT_TOKENS, TOKENS_EACH, Length

RESTART_S = 120.0
"""until a lost server runs again"""
_LOOK_S = 0.25
_RETRY_S = 1.0
_TOKENS = np.ones(MOST_TOKENS // TOKENS_EACH, np.int32)
_LOGPROBS = np.zeros(MOST_TOKENS // TOKENS_EACH, np.float32)


class SimulatedFleet:
    """Servers, some of which are lost now and then."""

    def __init__(self, count: int, speed: ServerSpeed) -> None:
        self.servers = {f"server-{n}": SimulatedServer(speed) for n in range(count)}
        self.lost = 0
        """servers, so far"""
        self._turns = itertools.cycle(self.servers.values())

    @property
    def server_urls(self) -> Sequence[str]:
        return list(self.servers)

    async def wait_healthy(self) -> None:
        while not all(server.is_up for server in self.servers.values()):
            await asyncio.sleep(_LOOK_S)

    async def versions(self) -> Mapping[str, str]:
        """Nothing of a lost server."""
        return {
            url: str(server.version) if server.is_up else "" for url, server in self.servers.items()
        }

    async def checksums(self) -> Mapping[str, str]:
        return dict.fromkeys(self.servers, "equal")

    async def next_server(self) -> SimulatedServer:
        """That takes the next request."""
        while True:
            for server in itertools.islice(self._turns, len(self.servers)):
                if server.is_up and server.has_weights:
                    return server
            await asyncio.sleep(_LOOK_S)

    async def lose_servers(self, mean_hours: float, seed: int) -> None:
        """For ever: a server is lost every `mean_hours` on average, each by itself."""
        draw = random.Random(seed)
        while True:
            await asyncio.sleep(draw.expovariate(len(self.servers) / (3600 * mean_hours)))
            server = draw.choice(list(self.servers.values()))
            if server.is_up:
                self.lost += 1
                server.lose()
                asyncio.get_running_loop().call_later(RESTART_S, server.restart)

    def reachable(self, urls: Sequence[str]) -> list[SimulatedServer]:
        """The servers with these addresses. Raises EngineError if one of them is lost."""
        chosen = [self.servers[url] for url in urls]
        if not all(server.is_up for server in chosen):
            raise EngineError("a server does not answer")
        return chosen


class SimulatedClient(GenerationClient):
    """The real client, whose requests are simulated."""

    def __init__(
        self,
        fleet: SimulatedFleet,
        length: Length,
        max_batch: int = 16,
        *,
        in_pieces: bool = False,
    ) -> None:
        """`in_pieces`: what is behind a prompt is the answer so far."""
        super().__init__("http://simulated", max_batch=max_batch)
        self._in_pieces = in_pieces
        self._fleet = fleet
        self._length = length

    async def _answer(self, batch: Batch) -> None:
        waiting = [turn for turn in batch.turns if not turn.is_over]
        while waiting:
            server = await self._fleet.next_server()
            await asyncio.gather(*(self._written(server, turn) for turn in waiting))
            waiting = [turn for turn in waiting if not turn.is_over]
            if waiting:
                self.counts.retries += 1
                self.on_trouble()
                await asyncio.sleep(_RETRY_S)

    async def _written(self, server: SimulatedServer, turn: AskedTurn) -> None:
        """Answer a turn when it is done; not at all if the server is lost."""
        assert turn.sampling.seed is not None
        left = self._length(turn.sampling.seed)
        if self._in_pieces:
            left -= len(turn.prompt_ids) * TOKENS_EACH - PROMPT_TOKENS
        count = min(left, turn.sampling.max_new_tokens * TOKENS_EACH)
        try:
            versions = await server.generate(len(turn.prompt_ids) * TOKENS_EACH, count)
        except ServerLost:
            return
        if not turn.is_over:
            self.counts.new_tokens += count
            turn.generation.set_result(_generation(versions, count == left))


def _generation(versions: WeightVersions, is_whole: bool) -> Generation:
    """Simulated tokens of versions that are given for a model's tokens."""
    ends = itertools.accumulate(count for _, count in versions.runs)
    marks = [0, *(round(end / TOKENS_EACH) for end in ends)]
    runs = [(v, marks[i + 1] - marks[i]) for i, (v, _) in enumerate(versions.runs)]
    count, finish = marks[-1], "stop" if is_whole else "length"
    return Generation(_TOKENS[:count], _LOGPROBS[:count], WeightVersions.of_runs(runs), finish)
