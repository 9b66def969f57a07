"""Who has the devices when, in a stage whose trainer and servers share them.

    generate ──▶ train ──▶ publish ──▶ (keep) ──▶ generate
    servers      trainer   weights     weights    servers
                           of both     of both,
                                       optimizer

First whoever has to gives memory back, then the others take theirs: never are both there at full
size. What servers gave back of their weights is lost, and comes with the next publish.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from engines.devices.units import SERVER_PARTS, TRAINER_PARTS, Held, ServerPart, TrainerPart
from infra.errors import EngineError

_log = logging.getLogger(__name__)


class TrainedRole(Protocol):
    """A group of ranks that trains one model."""

    async def hold(self, parts: Collection[TrainerPart]) -> Held: ...


class ServedRole(Protocol):
    """The servers that a policy generates with."""

    async def hold(self, parts: Collection[ServerPart]) -> Held: ...


@dataclass(frozen=True, slots=True)
class Phase:
    """What is awake."""

    name: str
    trained: frozenset[TrainerPart]
    servers: frozenset[ServerPart]


GENERATE = Phase("generate", frozenset(), SERVER_PARTS)
TRAIN = Phase("train", TRAINER_PARTS, frozenset())
PUBLISH = Phase("publish", frozenset({"weights"}), frozenset({"weights"}))
KEEP = Phase("keep", frozenset({"weights", "optimizer"}), frozenset({"weights"}))
"""a checkpoint is written or loaded: without gradients and activations, in whose place the servers
have their weights"""
REPAIR = Phase("repair", frozenset({"weights"}), SERVER_PARTS)
"""a server that was lost gets its weights while the others generate on: the one time when anything
of the trainer is beside servers at full size"""


class SeparateDevices:
    """Trainer and servers have devices of their own: nobody waits for anybody."""

    are_shared = False

    async def train(self) -> None:
        """The trainer may train from now on; nothing may be generating."""

    async def generate(self) -> None:
        """The servers may generate from now on, with the weights that were published last."""

    @asynccontextmanager
    async def keeping(self) -> AsyncGenerator[None]:
        """Hold the devices while the trainer's state is written or read; nothing may be
        generating."""
        yield

    @asynccontextmanager
    async def publishing(self) -> AsyncGenerator[None]:
        """Hold the devices while weights go from the trainer to the servers."""
        yield

    @property
    def servers_lack_weights(self) -> bool:
        """Return whether they have to be published before anything is generated."""
        return False

    def since_last(self) -> dict[str, float]:
        """Metrics since this was asked last: seconds and bytes, by role."""
        return {}


class SharedDevices(SeparateDevices):
    """Trainer and servers take turns by sleep and wake. For one stage, which has one phase."""

    are_shared = True

    def __init__(
        self,
        trained: Mapping[str, TrainedRole],
        servers: ServedRole,
        warn: Callable[[str], None],
    ) -> None:
        """The trained roles, by name, are asleep and the servers awake. `warn` hears of a role that
        holds much although it sleeps."""
        self._trained, self._servers, self._warn = trained, servers, warn
        self.phase = GENERATE
        self._changing = asyncio.Lock()
        """held by who begins a phase, or needs the present one"""
        self._metrics: defaultdict[str, float] = defaultdict(float)
        self._warned: set[str] = set()

    async def train(self) -> None:
        async with self._changing:
            await self._begin(TRAIN)

    async def generate(self) -> None:
        async with self._changing:
            if self.servers_lack_weights:
                raise EngineError("servers that slept have no weights: publish them first")
            await self._begin(GENERATE)

    @asynccontextmanager
    async def keeping(self) -> AsyncGenerator[None]:
        async with self._changing:
            await self._begin(KEEP)
            yield

    @asynccontextmanager
    async def publishing(self) -> AsyncGenerator[None]:
        async with self._changing:
            is_generating = self.phase is GENERATE
            await self._begin(REPAIR if is_generating else PUBLISH)
            try:
                yield
            finally:
                if is_generating:
                    await self._begin(GENERATE)

    @property
    def servers_lack_weights(self) -> bool:
        return "weights" not in self.phase.servers

    def since_last(self) -> dict[str, float]:
        told, self._metrics = dict(self._metrics), defaultdict[str, float](float)
        return told

    async def _begin(self, phase: Phase) -> None:
        """Sleep, then wake."""
        before = self.phase
        if phase is before:
            return
        _log.info("devices: %s", phase.name)
        both = Phase("", before.trained & phase.trained, before.servers & phase.servers)
        await self._have(both, before)
        await self._have(phase, both)
        self.phase = phase

    async def _have(self, phase: Phase, before: Phase) -> None:
        """Every role that the two differ in only sleeps, or only wakes."""
        if phase.trained != before.trained:
            does = "wake" if phase.trained > before.trained else "sleep"
            for name, role in self._trained.items():
                began = time.monotonic()
                held = await role.hold(phase.trained)
                self._note(name, does, began, held, is_asleep=not phase.trained)
        if phase.servers != before.servers:
            does = "wake" if phase.servers > before.servers else "sleep"
            began = time.monotonic()
            held = await self._servers.hold(phase.servers)
            self._note("servers", does, began, held, is_asleep=not phase.servers)

    def _note(self, name: str, does: str, began: float, held: Held, *, is_asleep: bool) -> None:
        self._metrics[f"{name}_{does}_seconds"] += time.monotonic() - began
        self._metrics[f"{name}_given_back_bytes"] += held.given_back
        if not is_asleep:
            return
        self._metrics[f"{name}_left_bytes"] = held.left
        largest = ", ".join(held.largest) or "not known in detail"
        _log.info(
            "%s gave back %d bytes and holds %d: %s", name, held.given_back, held.left, largest
        )
        if held.is_too_much and name not in self._warned:
            self._warned.add(name)
            self._warn(
                f"{name} holds {held.left / 1e9:.2f} GB of its device although it sleeps, and gave"
                f" back {held.asleep / 1e9:.2f} GB: {largest}. The other side may run out of"
                " memory; lower its share, or set `share: false` in the stage's resources"
            )
