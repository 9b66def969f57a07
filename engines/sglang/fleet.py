"""A stage's side of a fleet: lease servers, generate, load weights, release. Imports no torch."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from engines.devices.lease import StageLease
from engines.devices.lease import prewarm as prewarm_units
from engines.devices.units import SERVER_PARTS, Held, Request, ServerPart
from engines.devices.waiting_time import folder_bytes, transfer_bound_s
from engines.sglang import http
from engines.sglang.client import GenerationClient
from engines.sglang.external.external_lease import ExternalLease
from engines.sglang.servers.server_units import HeldParts, ServerTerms, ServerUse, TrainerDevices
from engines.sglang.spec import FleetSpec
from engines.weights.transport import ServerWeights, server_weights
from infra.errors import EngineError, LeaseLost

_START_S = 600.0
"""what servers may take to start and to read a model of no size"""
_CALL_S = 30.0
REPAIR_S = 60.0
"""what a lost server may take to run again, apart from reading its weights"""
_LOOK_S = 0.25
_CACHE_LOOK_S = 1.0
"""between two looks at a cache, each at another server's"""
_CACHE_ANSWER_S = 5.0


async def prewarm(pool_servers: int) -> None:
    """Load SGLang in the background, so that a lease finds it warm."""
    await prewarm_units("server", pool_servers)


@dataclass(frozen=True, slots=True)
class WantedFleet:
    """What a role of a stage asks for."""

    terms: ServerTerms
    servers: int


class Fleet:
    """Leased servers behind one router; made by `lease`, ended by `release` or `async with`."""

    def __init__(self, lease: StageLease | ExternalLease, terms: ServerTerms) -> None:
        use: ServerUse = lease.use
        self.router_url = use.router_url
        count = len(use.server_urls)
        self.client = GenerationClient(
            use.router_url,
            max_batch=16 if use.takes_batches else 1,
            routing=terms.spec.routing if count > 1 else "spread",
            most_turns=terms.spec.most_turns * count,
            with_experts=terms.spec.says_experts,
        )
        self._lease, self._terms = lease, terms
        self._asleep = 0
        lease.on_lost = self.client.refuse  # every further turn fails and says why

    def on_lost(self, also: Callable[[LeaseLost], object]) -> None:
        """Have this called, too, when the servers are someone else's: others ask them besides."""

        def lost(reason: LeaseLost) -> None:
            self.client.refuse(reason)
            also(reason)

        self._lease.on_lost = lost

    @property
    def server_urls(self) -> list[str]:
        """Return the servers' addresses. Servers of a lost host of ours move when `wait_healthy`
        waits for them; of others, only those are named that are not lost."""
        use: ServerUse = self._lease.use
        return list(use.server_urls)

    @property
    def version(self) -> int:
        """Return what `load` loaded last; publishing tensors does not change it."""
        return self._terms.version

    @classmethod
    async def lease(
        cls,
        spec: FleetSpec,
        model: Path,
        servers: int,
        tp: int,
        pool_servers: int,
        holder: str,
        *,
        shares: TrainerDevices | None = None,
        wait_s: float = 3600.0,
        owner: Any = None,
    ) -> Fleet:
        """Wait for `servers` servers, first come first served, that serve `model` as version 0; or
        for those of others that the spec names, all of them. `shares`: the devices of the trainer
        that they take turns with.

        Raises InputError if there can never be that many, EngineError if none came free within
        `wait_s` or a server does not start (with the end of its log).
        """
        wanted = WantedFleet(ServerTerms(spec, model, tp, shares=shares), servers)
        (fleet,) = await cls.lease_all([wanted], pool_servers, holder, wait_s=wait_s, owner=owner)
        return fleet

    @classmethod
    async def lease_all(
        cls,
        wanted: Sequence[WantedFleet],
        pool_servers: int,
        holder: str,
        *,
        wait_s: float = 3600.0,
        owner: Any = None,
    ) -> list[Fleet]:
        """Lease servers for all roles of a stage at once, each with servers of its own; in
        order."""
        fleets: dict[int, Fleet] = {}
        ours: dict[int, WantedFleet] = {}
        try:
            for index, each in enumerate(wanted):
                if each.terms.spec.external:
                    lease = await ExternalLease.take(each.terms, holder, wait_s)
                    fleets[index] = cls(lease, each.terms)
                else:
                    ours[index] = each
            if ours:
                requests = [_request(each, pool_servers, holder, wait_s) for each in ours.values()]
                what = f"the stage needs {sum(each.servers for each in ours.values())}"
                longest_s = max(_bound_s(each.terms.model) for each in ours.values())
                leases = await StageLease.take_all(
                    requests, what=what, prepare_s=longest_s, owner=owner
                )
                for (index, each), lease in zip(ours.items(), leases, strict=True):
                    fleets[index] = cls(lease, each.terms)
        except BaseException:
            for fleet in fleets.values():
                await fleet.release()
            raise
        return [fleets[index] for index in range(len(wanted))]

    async def wait_healthy(self) -> None:
        """Return when every server runs, with any weights. Raises EngineError after what reading
        the weights may take."""
        wait_s = transfer_bound_s(folder_bytes(self._terms.model), REPAIR_S)
        deadline = time.monotonic() + wait_s
        while not await self._lease.is_healthy():
            if time.monotonic() > deadline:
                raise EngineError(f"a server that was lost is not back after {wait_s:.0f} s")
            await asyncio.sleep(_LOOK_S)

    async def versions(self) -> dict[str, str]:
        """Return what each server says it serves; empty of one that does not answer."""
        found = await asyncio.gather(
            *[asyncio.to_thread(_version, url) for url in self.server_urls]
        )
        return dict(zip(self.server_urls, found, strict=True))

    async def checksums(self) -> dict[str, str]:
        """Return the checksums of the weights in each server's memory; servers that do not answer
        are left out."""
        found = await asyncio.gather(
            *[asyncio.to_thread(server_weights, url) for url in self.server_urls],
            return_exceptions=True,
        )
        pairs = zip(self.server_urls, found, strict=True)
        return {url: held.checksum for url, held in pairs if isinstance(held, ServerWeights)}

    async def load(self, model: Path, version: int) -> None:
        """Serve the weights of another HF folder as `version`; nothing may be generating."""
        terms = replace(self._terms, model=model, version=version)
        await self._lease.prepare(terms, _bound_s(model))
        self._terms = terms

    async def hold(self, parts: Collection[ServerPart]) -> Held:
        """Have these parts on the servers' devices, and no others; nothing may be generating.

        Weights that woke hold nothing: they have to be published or loaded before a client takes
        what the servers answer.
        """
        held = HeldParts(frozenset(parts))
        await self._lease.prepare(held, _bound_s(self._terms.model))
        use: ServerUse = self._lease.use
        self._asleep += use.given_back
        if held.parts == SERVER_PARTS:
            self._asleep = 0
        return Held(use.given_back, self._asleep, use.held)

    async def release(self) -> None:
        """Give the servers back; they stay warm. Doing it twice is harmless."""
        await self.client.close()
        await self._lease.release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.release()


class CacheUse:
    """How full the KV caches of a fleet's servers are, looked at while a stage works."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._seen: list[float] = []

    @asynccontextmanager
    async def watched(self) -> AsyncGenerator[None]:
        """Look at the caches while the block runs."""
        task = asyncio.create_task(self._watch(), name="cache use")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def since_last(self) -> dict[str, float]:
        """`kv_use_mean` and `kv_use_max`, as shares, since this was last asked; nothing where no
        server says it."""
        seen, self._seen = self._seen, []
        return {"kv_use_mean": sum(seen) / len(seen), "kv_use_max": max(seen)} if seen else {}

    async def _watch(self) -> None:
        turn = 0
        while True:
            urls = self._fleet.server_urls
            with suppress(EngineError):  # it is busy or lost, or does not know the question
                for url in urls[turn % max(len(urls), 1) :][:1]:
                    self._seen += await asyncio.to_thread(_cache_use, url)
            turn += 1
            await asyncio.sleep(_CACHE_LOOK_S)


def _cache_use(url: str) -> list[float]:
    """Return what requests under way take of each data-parallel part of a server. Raises
    EngineError."""
    loads = http.call(url, "/v1/loads?include=core", timeout=_CACHE_ANSWER_S)["loads"]
    shares = (load.get("token_usage") for load in loads)
    return [float(share) for share in shares if isinstance(share, int | float)]


def _request(wanted: WantedFleet, pool: int, holder: str, wait_s: float) -> Request:
    is_sole = wanted.terms.shares is not None
    return Request("server", wanted.servers, pool, holder, wanted.terms, wait_s, is_sole=is_sole)


def _bound_s(model: Path) -> float:
    return transfer_bound_s(folder_bytes(model), _START_S)


def _version(url: str) -> str:
    try:
        return str(http.call(url, "/model_info", timeout=_CALL_S)["weight_version"])
    except EngineError:
        return ""
