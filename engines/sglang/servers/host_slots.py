"""The slots of a host other than the owner's, in the process of its agent."""

from __future__ import annotations

from functools import partial

from engines.devices.host_agent import HostAgent
from engines.devices.kinds import ServerPart
from engines.sglang.servers.place import Place
from engines.sglang.servers.remote_slot import SlotState
from engines.sglang.servers.server import Server
from engines.sglang.servers.slots import LAUNCHER, Slot
from engines.sglang.spec import FleetSpec
from infra.store.origins import FolderCopy


class HostSlots:
    """What `RemoteSlot` orders; each slot by its number. A slot is used by one caller at a time."""

    def __init__(self, agent: HostAgent) -> None:
        self._agent = agent
        agent.children(LAUNCHER)  # it is ready when the first server is wanted
        self._slots: dict[int, Slot] = {}

    def ensure(self, index: int, spec: FleetSpec, model: FolderCopy, place: Place) -> SlotState:
        slot = self._slot(index)
        slot.ensure(spec, model.here(), place)
        return _state(slot)

    def hold(
        self,
        index: int,
        parts: frozenset[ServerPart],
        spec: FleetSpec,
        model: FolderCopy,
        place: Place,
    ) -> SlotState:
        slot = self._slot(index)
        slot.hold(parts, spec, model.here(), place)
        return _state(slot)

    def load(self, index: int, model: FolderCopy, version: int) -> None:
        self._slot(index).load(model.here(), version)

    def held_bytes(self, index: int) -> int:
        return self._slot(index).held_bytes

    def free_memory(self, index: int) -> SlotState:
        slot = self._slot(index)
        slot.free_memory()
        return _state(slot)

    def stop(self, index: int) -> SlotState:
        slot = self._slot(index)
        slot.stop()
        return _state(slot)

    def is_alive(self, index: int, pid: int) -> bool:
        server = self._server(index, pid)
        return server is not None and server.is_alive

    def answer(self, index: int, pid: int, hung_s: float) -> None:
        if (server := self._server(index, pid)) is not None:
            server.answer(hung_s)

    def stop_server(self, index: int, pid: int) -> None:
        if (server := self._server(index, pid)) is not None:
            server.stop()

    def _slot(self, index: int) -> Slot:
        if index not in self._slots:
            servers = partial(self._agent.children, LAUNCHER)
            self._slots[index] = Slot(servers, index, self._agent.num_gpus)
        return self._slots[index]

    def _server(self, index: int, pid: int) -> Server | None:
        """None if another one took its place."""
        server = self._slot(index).server
        return server if server is not None and server.pid == pid else None


def _state(slot: Slot) -> SlotState:
    return SlotState(slot.url, None if slot.server is None else slot.server.pid, slot.held_gpus)
