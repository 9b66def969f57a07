"""Real servers behind the real router, as a fleet has them, without the fleet's Ray actor."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from engines.devices.host_agent import HostAgent
from engines.sglang.servers.server import Place
from engines.sglang.servers.slots import ServerSlots
from engines.sglang.spec import FleetSpec


@dataclass(slots=True)
class Servers:
    slots: ServerSlots

    def serve(self, model: Path, count: int) -> tuple[str, Sequence[str]]:
        """`count` servers with these weights as version 0; the router's URL and theirs."""
        names = self.slots.grow(count)[:count]
        router = self.slots.prepare(dict.fromkeys(names, Place(tp=1)), FleetSpec(), model, 0)
        return router.url, [self.slots[name].url for name in names]


@contextmanager
def servers(logs: Path) -> Generator[Servers]:
    slots = ServerSlots(HostAgent(logs, 0))
    try:
        yield Servers(slots)
    finally:
        slots.close()
