"""A slot on another host than the owner's: the same methods, each an order to that host's agent."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines.devices.hosts import Host, Hosts
from engines.sglang.http import call
from engines.sglang.spec import FleetSpec
from infra.errors import EngineError
from infra.store.origins import FolderCopy, origin_of

_PART = "engines.sglang.servers.host_slots:HostSlots"
"""by name: it is of that host's agent"""
_START_S = 4000.0
"""a little more than the bounds that hold on that host"""
_ASK_S = 60.0
_CONTROL_S = 30.0
_MANY_TIMES = 25
"""times its bound that a question to a hung server may take"""


class RemoteSlot:
    """See `Slot`. Of a lost host nothing is alive, and every order raises EngineError."""

    def __init__(self, hosts: Hosts, host: Host, index: int) -> None:
        self.name = f"server-{index}"
        self.index, self.host = index, host.node
        self.server: RemoteServer | None = None
        self.url = ""
        self._hosts, self._of = hosts, host
        self._architecture = ""

    @property
    def is_alive(self) -> bool:
        return self.server is not None and self.server.is_alive

    def fits(self, wanted: str) -> bool:
        return self._architecture == wanted and not self._hosts.is_lost(self._of)

    def ensure(self, spec: FleetSpec, model: Path, tp: int) -> None:
        copy = FolderCopy(model, origin_of(model))
        found = self.ask("ensure", spec, copy, tp, timeout_s=_START_S)
        self.url, pid, self._architecture = found
        if self.server is None or self.server.pid != pid:
            self.server = RemoteServer(self, pid)

    def load(self, model: Path, version: int) -> None:
        self.ask("load", FolderCopy(model, origin_of(model)), version, timeout_s=_START_S)

    def stop(self) -> None:
        self._architecture, self.server = "", None
        with suppress(EngineError):  # on a host that is lost nothing runs
            self.ask("stop")

    def ask(self, method: str, *arguments: Any, timeout_s: float = _ASK_S) -> Any:
        if self._hosts.is_lost(self._of):
            raise EngineError(f"host {self._of.address}, where {self.name} ran, is lost")
        agent = self._hosts.agent(self._of)
        return agent.call(_PART, method, self.index, *arguments, timeout_s=timeout_s)


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
