"""The host agent on another host than the owner's: a Ray actor, which ends with all it started."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from engines.devices.host_agent import HostAgent
from infra.home import home
from infra.hooks import resolve
from infra.processes.leftovers import claim_private_folder


class HostProcess:
    """Called by `RemoteAgent`, from several threads."""

    def __init__(self, num_gpus: int) -> None:
        claim_private_folder()
        self._agent = HostAgent(home() / "logs" / "fleet", num_gpus)
        self._parts: dict[str, Any] = {}
        self._lock = threading.Lock()

    def ready(self) -> None:
        """Answers when the process runs."""

    def gpu_environment(self, device: int) -> dict[str, str]:
        return self._agent.gpu_environment(device)

    def call(self, part: str, method: str, arguments: Sequence[Any]) -> Any:
        with self._lock:
            if part not in self._parts:
                self._parts[part] = resolve("part of a host", part, {})(self._agent)
        return getattr(self._parts[part], method)(*arguments)
