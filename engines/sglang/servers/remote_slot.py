"""A slot on another host than the owner's: the same methods, each an order to that host's agent."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engines.devices.ray_cluster import Host, Hosts
from engines.devices.units import ServerPart
from engines.sglang.http import call
from engines.sglang.servers.server import Place, architecture
from engines.sglang.spec import FleetSpec
from infra.errors import EngineError
from infra.store.origins import FolderCopy, origin_of

_PART = "engines.sglang.servers.host:HostSlots"
"""by name: it is of that host's agent"""
_START_S = 4000.0
"""a little more than the bounds that hold on that host"""
_ASK_S = 60.0
_CONTROL_S = 30.0
_MANY_TIMES = 25
"""times its bound that a question to a hung server may take"""


@dataclass(frozen=True, slots=True)
class SlotState:
    """What is in a slot after an order."""

    url: str = ""
    pid: int | None = None
    """of its server, on its host; None without one"""
    held_gpus: frozenset[int] = frozenset()
    """numbers on that host"""


class RemoteSlot:
    """See `Slot`. Of a lost host nothing is alive, and every order raises EngineError."""

    def __init__(self, hosts: Hosts, host: Host, index: int) -> None:
        self.name = f"server-{index}"
        self.index, self.host = index, host.node
        self.server: RemoteServer | None = None
        self._hosts, self._of = hosts, host
        self._state = SlotState()
        self._architecture = ""

    @property
    def url(self) -> str:
        return self._state.url

    @property
    def is_alive(self) -> bool:
        return self.server is not None and self.server.is_alive

    def fits(self, wanted: str) -> bool:
        return self._architecture == wanted and self._hosts.living(self.host) is not None

    def ensure(self, spec: FleetSpec, model: Path, place: Place) -> None:
        self._order("ensure", spec, _copy(model), self._there(place), timeout_s=_START_S)
        self._architecture = architecture(spec, model, place)

    def hold(
        self, parts: frozenset[ServerPart], spec: FleetSpec, model: Path, place: Place
    ) -> None:
        there = self._there(place)
        self._order("hold", parts, spec, _copy(model), there, timeout_s=_START_S)
        self._architecture = architecture(spec, model, place) if self.server else ""

    def load(self, model: Path, version: int) -> None:
        self.ask("load", _copy(model), version, timeout_s=_START_S)

    @property
    def held_gpus(self) -> frozenset[int]:
        """Numbers in the cluster."""
        return frozenset(self._of.first_gpu + number for number in self._state.held_gpus)

    @property
    def held_bytes(self) -> int:
        return self.ask("held_bytes")

    def free_memory(self) -> None:
        with suppress(EngineError):  # on a host that is lost nothing is held
            self._order("free_memory")

    def stop(self) -> None:
        self._architecture, self.server = "", None
        with suppress(EngineError):  # on a host that is lost nothing runs
            self._order("stop")

    def ask(self, method: str, *arguments: Any, timeout_s: float = _ASK_S) -> Any:
        if self._hosts.living(self.host) is None:
            raise EngineError(f"host {self._of.address}, where {self.name} ran, is lost")
        agent = self._hosts.agent(self._of)
        return agent.call(_PART, method, self.index, *arguments, timeout_s=timeout_s)

    def _order(self, method: str, *arguments: Any, timeout_s: float = _ASK_S) -> None:
        self._state = self.ask(method, *arguments, timeout_s=timeout_s)
        pid = self._state.pid
        if pid is None:
            self._architecture, self.server = "", None
        elif self.server is None or self.server.pid != pid:
            self.server = RemoteServer(self, pid)

    def _there(self, place: Place) -> Place:
        """With the GPU's number on that host."""
        first = self._of.first_gpu
        if place.shared_gpu is not None:
            return replace(place, shared_gpu=place.shared_gpu - first)
        return place if place.own_gpu is None else replace(place, own_gpu=place.own_gpu - first)


@dataclass(frozen=True, slots=True)
class RemoteServer:
    """The server in a slot; another one may take its place."""

    slot: RemoteSlot
    pid: int
    """on its host"""

    @property
    def is_alive(self) -> bool:
        try:
            return self.slot.ask("is_alive", self.pid)
        except EngineError:
            return False

    @property
    def version(self) -> str:
        return str(call(self.slot.url, "/model_info", timeout=_CONTROL_S)["weight_version"])

    def answer(self, hung_s: float) -> None:
        """See `Server.answer`."""
        self.slot.ask("answer", self.pid, hung_s, timeout_s=_MANY_TIMES * hung_s)

    def stop(self) -> None:
        self.slot.ask("stop_server", self.pid)


def _copy(model: Path) -> FolderCopy:
    return FolderCopy(model, origin_of(model))
