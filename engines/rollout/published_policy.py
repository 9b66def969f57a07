"""The policy as the servers serve it: published after each update, and again to a server that died
and came back without it.

Repair is requested by a client whose turns fail. It publishes the weights of the moment, so an
update waits for a repair, and a repair for an update: its publish gives servers what they lack.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from engines.devices.sharing import SeparateDevices
from engines.weights.transport import PublishReport
from infra.errors import EngineError

_TRIES = 3

_log = logging.getLogger(__name__)


class Publisher(Protocol):
    """The servers that have the weights."""

    async def publish(self, endpoints: Sequence[str], version: int) -> PublishReport: ...


class LeasedServers(Protocol):
    """Leased servers that someone restarts when they die."""

    @property
    def server_urls(self) -> Sequence[str]: ...

    async def wait_healthy(self) -> None: ...

    async def versions(self) -> Mapping[str, str]: ...

    async def checksums(self) -> Mapping[str, str]: ...


class PublishedPolicy:
    """The one owner of the policy's version: everybody else reads it. Not for two stages."""

    def __init__(
        self,
        trainer: Publisher,
        servers: LeasedServers,
        version: int,
        devices: SeparateDevices | None = None,
    ) -> None:
        """`version`: what the servers serve now; `devices`: whether they are the trainer's too."""
        self._trainer, self._servers, self._version = trainer, servers, version
        self._devices = devices or SeparateDevices()
        self._weights = asyncio.Lock()
        """held by who changes the trainer's weights, or needs them to be those of the version"""
        self._repairing: asyncio.Task[None] | None = None

    @property
    def version(self) -> int:
        """Return the version of the weights that the servers serve, or are being given."""
        return self._version

    @property
    def is_changing(self) -> bool:
        """Return whether a lost server has to wait for its weights."""
        return self._weights.locked()

    @property
    def is_repairing(self) -> bool:
        """Return whether a server that was lost waits for its weights."""
        return self._repairing is not None and not self._repairing.done()

    @asynccontextmanager
    async def changing(self) -> AsyncGenerator[None]:
        """While the trainer's weights are not those of the version: no server is repaired. The
        trainer has the devices, if they are shared."""
        async with self._weights:
            await self._devices.train()
            yield
            if self._devices.servers_lack_weights:  # the policy stayed as it was
                await self._publish()

    async def publish_next(self) -> PublishReport:
        """Put the trainer's weights on the servers as the next version, while they are `changing`.
        One that is lost gets them when it is back. Raises EngineError if all stay lost."""
        self._version += 1
        return await self._publish()

    async def go_on(self, version: int) -> None:
        """Take up the version of a checkpoint whose weights the trainer has loaded."""
        async with self._weights:
            self._version = version
            await self._publish()

    async def _publish(self) -> PublishReport:
        urls = self._servers.server_urls
        for tries_left in reversed(range(_TRIES)):
            try:
                report = await self._push(urls)
            except EngineError as error:
                if not tries_left:
                    raise
                _log.warning("publishing version %d again: %s", self._version, error)
                urls = await self._that_answer()
                continue
            if len(urls) < len(self._servers.server_urls):
                self.repair()
            return report
        raise AssertionError("the last try returns or raises")

    async def _push(self, urls: Sequence[str]) -> PublishReport:
        async with self._devices.publishing():
            return await self._trainer.publish(urls, self._version)

    async def _that_answer(self) -> Sequence[str]:
        """The servers without those that are lost, which catch up later; waits if all are."""
        served = await self._servers.versions()
        if found := [url for url, version in served.items() if version]:
            return found
        await self._servers.wait_healthy()
        return self._servers.server_urls

    def repair(self) -> asyncio.Task[None]:
        """Give the present version to servers that lack it, in the background; never raises."""
        if self._repairing is None or self._repairing.done():
            self._repairing = asyncio.create_task(self._repair())
        return self._repairing

    async def close(self) -> None:
        if self._repairing is not None:
            self._repairing.cancel()
            await asyncio.gather(self._repairing, return_exceptions=True)
            self._repairing = None

    async def _repair(self) -> None:
        try:
            await self._servers.wait_healthy()
            async with self._weights:
                served = await self._servers.versions()
                lacking = [url for url, version in served.items() if version != str(self._version)]
                if lacking:
                    await self._push(lacking)
                    await self._make_equal()
        except EngineError as error:  # whoever asked tries on, and asks again
            _log.warning("a lost server has not got its weights yet: %s", error)

    async def _make_equal(self) -> None:
        """Publish to all servers again if they hold different bits of one version."""
        checksums = await self._servers.checksums()
        if len(set(checksums.values())) > 1:
            _log.warning("servers differ in version %d: %s", self._version, checksums)
            await self._push(self._servers.server_urls)


@dataclass(slots=True)
class UnpublishedPolicy:
    """See `engines.rollout.protocols.PublishedWeights`."""

    version: int = 0

    @asynccontextmanager
    async def changing(self) -> AsyncGenerator[None]:
        yield

    async def publish_next(self) -> PublishReport:
        self.version += 1
        return PublishReport(self.version, "none", bytes=0, servers=0, seconds=0.0)
