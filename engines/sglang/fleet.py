"""A stage's side of a fleet: lease servers, generate, load weights, release. Imports no torch."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Any, Self

from engines.keeper import grant_of, keep_renewing, open_keeper
from engines.raylink import code_tag, connect, driver_id
from engines.sglang import http
from engines.sglang.client import GenerationClient
from engines.sglang.servers.manager import HUNG_S, LEASE_TTL_S, FleetManager, Request, ServerGrant
from engines.sglang.spec import FleetSpec
from engines.weights.held import HeldWeights, held_weights
from infra.errors import EngineError, InputError, TributaryError
from infra.home import home

_PREFIX = "fleet-manager-"
_CODE = (
    "engines/families",
    "engines/keeper.py",
    "engines/lease.py",
    "engines/sglang",
    "engines/weights",
    "infra/access.py",
    "infra/errors.py",
)
_START_S = 600.0
_CALL_S = 30.0
REPAIR_S = 60.0
"""what a lost server may take to run again"""
_LOOK_S = 0.25
_LOAD_S = 600.0


def open_manager(
    name: str = "", num_gpus: float = 0.0, ttl_s: float = LEASE_TTL_S, hung_s: float = HUNG_S
) -> Any:
    """The Ray actor handle of the one manager that runs this very code; started if need be.

    Blocks like `raylink.connect` the first time. A test passes a name and times of its own.
    """
    arguments = (str(home() / "logs" / "fleet"), ttl_s, hung_s)
    tag = code_tag(*_CODE)
    return open_keeper(FleetManager, _PREFIX, tag, name, arguments, num_gpus=num_gpus)


async def prewarm(pool_servers: int, tp: int) -> None:
    """Start the manager, which loads SGLang in the background, so that a lease finds it warm."""
    await asyncio.to_thread(_open_for, pool_servers * tp)


class Fleet:
    """Leased servers behind one router; made by `lease`, ended by `release` or `async with`."""

    def __init__(self, manager: Any, grant: ServerGrant) -> None:
        self.router_url = grant.router_url
        self.server_urls = list(grant.server_urls)
        self.version = 0
        """what `load` loaded last; publishing tensors does not change it"""
        self.client = GenerationClient(grant.router_url)
        self._manager = manager
        self._grant = grant
        self._released = False
        self._renewal = asyncio.create_task(self._renew())

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
        wait_s: float = 3600.0,
        manager: Any = None,
    ) -> Fleet:
        """Wait for `servers` servers, first come first served, that serve `model` as version 0.

        Raises InputError if there can never be that many, EngineError if none came free within
        `wait_s` or a server does not start (with the end of its log).
        """
        if servers > pool_servers:
            raise InputError(
                f"the stage needs {servers} servers but there are {pool_servers}: raise"
                " resources.servers or ask for fewer"
            )
        manager = manager or await asyncio.to_thread(_open_for, pool_servers * tp)
        request = Request(spec, model, servers, tp, pool_servers, holder, driver_id(), wait_s)
        call = manager.lease.remote(request)
        bound = wait_s + _START_S
        return cls(manager, await grant_of(call, lambda c: _answer(c, bound, "leasing servers")))

    async def wait_healthy(self, wait_s: float = REPAIR_S) -> None:
        """Return when every server runs, with any weights. Raises EngineError after `wait_s`."""
        deadline = time.monotonic() + wait_s
        while True:
            call = self._manager.is_healthy.remote(self._grant.lease_id, self._grant.token)
            if await _answer(call, _CALL_S, "asking about the servers"):
                return
            if time.monotonic() > deadline:
                raise EngineError(f"a server that was lost is not back after {wait_s:.0f} s")
            await asyncio.sleep(_LOOK_S)

    async def versions(self) -> dict[str, str]:
        """What each server says it serves; empty of one that does not answer."""
        found = await asyncio.gather(
            *[asyncio.to_thread(_version, url) for url in self.server_urls]
        )
        return dict(zip(self.server_urls, found, strict=True))

    async def checksums(self) -> dict[str, str]:
        """Of the weights in each server's memory; servers that do not answer are left out."""
        found = await asyncio.gather(
            *[asyncio.to_thread(held_weights, url) for url in self.server_urls],
            return_exceptions=True,
        )
        pairs = zip(self.server_urls, found, strict=True)
        return {url: held.checksum for url, held in pairs if isinstance(held, HeldWeights)}

    async def load(self, model: Path, version: int) -> None:
        """Serve the weights of another HF folder as `version`; nothing may be generating."""
        call = self._manager.load.remote(self._grant.lease_id, self._grant.token, model, version)
        await _answer(call, _LOAD_S, f"loading {model}")
        self.version = version

    async def release(self) -> None:
        """Give the servers back; they stay warm. Doing it twice is harmless."""
        if self._released:
            return
        self._released = True
        self._renewal.cancel()
        await self.client.close()
        call = self._manager.release.remote(self._grant.lease_id, self._grant.token)
        with contextlib.suppress(EngineError):  # reclaimed already, or the manager is gone
            await _answer(call, _CALL_S, "releasing servers")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.release()

    async def _renew(self) -> None:
        """Keep the lease alive; once it is lost, every further turn fails and says why."""

        async def renew() -> None:
            call = self._manager.renew.remote(self._grant.lease_id, self._grant.token)
            await _answer(call, _CALL_S, "renewing the lease on servers")

        await keep_renewing(renew, self._grant.ttl_s / 6, self.client.refuse)


def _open_for(num_devices: int) -> Any:
    """The manager, holding `num_devices` GPUs where the cluster has any."""
    connect()
    import ray

    return open_manager(num_gpus=num_devices if ray.cluster_resources().get("GPU") else 0)


def _version(url: str) -> str:
    try:
        return str(http.call(url, "/model_info", timeout=_CALL_S)["weight_version"])
    except EngineError:
        return ""


async def _answer(call: Any, timeout: float, what: str) -> Any:
    """The answer of a Ray call; our own errors come out as themselves, others as EngineError."""
    from ray.exceptions import RayError, RayTaskError

    try:
        return await asyncio.wait_for(call, timeout)
    except TimeoutError:
        raise EngineError(f"{what}: no answer from the fleet manager in {timeout:.0f} s") from None
    except RayTaskError as error:
        if isinstance(error.cause, TributaryError):
            raise error.cause from error
        raise EngineError(f"{what} failed in the fleet manager: {error.cause!r}") from error
    except RayError as error:
        raise EngineError(f"{what}: the fleet manager ended ({error})") from error
