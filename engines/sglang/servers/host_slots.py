"""The slots of a host other than the owner's, in the process of its agent."""

from __future__ import annotations

from engines.devices.host_agent import HostAgent
from engines.sglang.servers.server import Server
from engines.sglang.servers.slots import LAUNCHER, Slot, architecture
from engines.sglang.spec import FleetSpec
from infra.store.origins import FolderCopy


class HostSlots:
    """What `RemoteSlot` orders; each slot by its number. A slot is used by one caller at a time."""

    def __init__(self, agent: HostAgent) -> None:
        self._num_gpus = agent.num_gpus
        self._servers = agent.children(LAUNCHER)
        self._slots: dict[int, Slot] = {}

    def ensure(
        self, index: int, spec: FleetSpec, model: FolderCopy, tp: int
    ) -> tuple[str, int, str]:
        """URL and process id of the server, and the architecture that it takes."""
        if index not in self._slots:
            self._slots[index] = Slot(self._servers, index, self._num_gpus)
        slot, folder = self._slots[index], model.here()
        slot.ensure(spec, folder, tp)
        assert slot.server is not None
        return slot.url, slot.server.pid, architecture(spec, folder, tp)

    def load(self, index: int, model: FolderCopy, version: int) -> None:
        self._slots[index].load(model.here(), version)

    def stop(self, index: int) -> None:
        if index in self._slots:
            self._slots[index].stop()

    def is_alive(self, index: int, pid: int) -> bool:
        server = self._server(index, pid)
        return server is not None and server.is_alive

    def answer(self, index: int, pid: int, hung_s: float) -> None:
        if (server := self._server(index, pid)) is not None:
            server.answer(hung_s)

    def stop_server(self, index: int, pid: int) -> None:
        if (server := self._server(index, pid)) is not None:
            server.stop()

    def _server(self, index: int, pid: int) -> Server | None:
        """None if another one took its place."""
        server = self._slots[index].server if index in self._slots else None
        return server if server is not None and server.pid == pid else None
