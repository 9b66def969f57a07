"""What starts and ends every engine process of a host: ranks, servers, routers.

HostAgent ─┬─ Ray actors (trainer ranks), which Ray ends when the agent's process ends
           └─ a parent process for each program to preload (`process_parent`): servers, routers
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engines.devices.child_processes import ChildProcesses
from engines.devices.ray_cluster import Host, Hosts, on_node, own_node
from infra.home import home
from infra.hooks import resolve
from infra.processes.leftovers import claim_private_folder


class HostAgent:
    """One a host: in the process of the owner of devices, or an actor on another host
    (`host_process`). Logs go to `logs`, a file a process."""

    def __init__(self, logs: Path, num_gpus: int) -> None:
        self.num_gpus = num_gpus
        self.hosts = Hosts(num_gpus)
        """this one and, where the owner runs, all others"""
        self._logs = logs
        self._children: dict[str, ChildProcesses] = {}
        self._lock = threading.Lock()

    def start_actor(
        self, actor_class: type, environment: Mapping[str, str], host: Host | None = None
    ) -> Any:
        """Return a process that answers calls, with these variables; returns before it is ready.
        Without `host` on this one.

        Ray counts no GPU for it: the agent holds all GPUs of its host, and says which one it uses.
        """
        import ray

        actor: Any = ray.remote(actor_class)
        node = (host and host.node) or own_node()
        options = actor.options(num_cpus=0, scheduling_strategy=on_node(node))
        return options.remote(environment)

    def end_actor(self, actor: Any) -> None:
        """End it whatever it is doing; returns at once."""
        import ray

        ray.kill(actor, no_restart=True)

    def gpu_environment(self, device: int, host: Host | None = None) -> dict[str, str]:
        """Variables of a process that has a host's device of this number to itself, and its share
        of the host's cores; without `host` this one's. It blocks for another host.

        Example: gpu_environment(1) -> {"CUDA_VISIBLE_DEVICES": "5", "OMP_NUM_THREADS": "16"}
        """
        if host is not None and host is not self.hosts.own:
            return self.hosts.agent(host).gpu_environment(device)
        names = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        visible = names[device] if device < len(names) and names[device] else str(device)
        # Ray sets one thread for whoever asks for no core, and an optimizer on the CPU needs many.
        threads = max(len(os.sched_getaffinity(0)) // max(self.hosts.own.num_gpus, 1), 1)
        return {"CUDA_VISIBLE_DEVICES": visible, "OMP_NUM_THREADS": str(threads)}

    def children(self, preloaded: str = "") -> ChildProcesses:
        """The parent of processes that need the module `preloaded`, or nothing; one for each, a new
        one where it died. Ask for it at each start."""
        with self._lock:
            known = self._children.get(preloaded)
            if known is not None and not known.is_alive:
                known.close()
            if known is None or not known.is_alive:
                known = self._children[preloaded] = ChildProcesses(self._logs, preloaded)
            return known

    def end_children(self, preloaded: str = "") -> None:
        """End a parent with all its children."""
        with self._lock:
            children = self._children.pop(preloaded, None)
        if children is not None:
            children.close()

    def close(self) -> None:
        """End all processes but the actors, which end with this one."""
        self.hosts.close()
        for preloaded in list(self._children):
            self.end_children(preloaded)


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
