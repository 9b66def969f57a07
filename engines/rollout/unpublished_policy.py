"""The policy of a training without servers: its versions are counted, and nobody is given them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from engines.weights.report import PublishReport


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
