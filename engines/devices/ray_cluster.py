"""The one place that connects to Ray, what every detached actor of ours needs around it, and the
hosts of the cluster as the owner of devices sees them: its own first, others by address.

Importing this file imports no ray: `connect` does, once a process. The agent of its own host is in
the owner's process; that of another one is an actor there, started when something is to run there,
and ended with the owner.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from infra.errors import EngineError, InfrastructureError, InputError, TributaryError
from infra.hooks import resolve

NAMESPACE = "tributary"
_PROBE_S = 5.0
_connecting = threading.Lock()
_PROCESS = "engines.devices.host_agent:HostProcess"
"""by name: it has an agent of its own"""
_ACCELERATOR = "accelerator_type:"
"""what Ray's names of a host's kind of GPU begin with"""
_START_S = 180.0
_ACTION_BYTES = 256
"""room for a `struct sigaction`"""
OWN = ""
"""node of the host on which this process runs, as long as there is no other"""


def connect() -> None:
    """Join the cluster named by RAY_ADDRESS; costs nothing when already joined.

    Blocks for about 2 s (importing ray, joining), so an event loop calls it in a thread; several
    threads may. Raises InputError when no address is set, InfrastructureError when nothing answers;
    both say what to do.
    """
    # A client that leaves the mode open may find a token file and be refused by our head.
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    with _connecting:
        import ray

        if not ray.is_initialized():
            _join(os.environ.get("RAY_ADDRESS", ""))


def _join(address: str) -> None:
    import ray

    _probe(address)
    try:
        with _sigterm_kept():
            ray.init(
                address=address,
                namespace=NAMESPACE,
                ignore_reinit_error=True,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
    except (ConnectionError, RuntimeError, OSError) as error:
        raise InfrastructureError(
            f"Ray at {address} refused this process: {error}. See `tributary status`;"
            " `tributary up` restarts what died"
        ) from error


@contextmanager
def _sigterm_kept() -> Generator[None]:
    """Give SIGTERM its handler back: ray.init replaces it, in any thread by one in C that writes a
    stack; ours saves a checkpoint."""
    libc, kept = ctypes.CDLL(None), ctypes.create_string_buffer(_ACTION_BYTES)
    libc.sigaction(int(signal.SIGTERM), None, kept)
    on_sigterm = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, on_sigterm)
        libc.sigaction(int(signal.SIGTERM), kept, None)


def _probe(address: str) -> None:
    """Fail within seconds where ray.init would try for two minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not address:
        raise InputError(
            "RAY_ADDRESS is not set, so there is no Ray to run on: start the stack with"
            " `tributary up`, or set it to HOST:PORT of a cluster"
        )
    if not port.isdecimal():
        return  # "auto" and the like: ray finds the cluster itself
    try:
        socket.create_connection((host, int(port)), timeout=_PROBE_S).close()
    except OSError as error:
        raise InfrastructureError(
            f"nothing answers at RAY_ADDRESS {address} ({error}): start the stack with"
            " `tributary up`, or see `tributary doctor`"
        ) from error


def own_node() -> str:
    """Ray's name of this host."""
    import ray

    return ray.get_runtime_context().get_node_id()


def on_node(node: str) -> Any:
    """Ray's strategy for what has to run on this host."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node, soft=False)


def driver_id() -> str:
    """Ray's id of the job whose driver (or actor) this process is; for `dead_drivers`."""
    import ray

    return ray.get_runtime_context().get_job_id()


def dead_drivers(candidates: set[str]) -> set[str]:
    """Return the jobs whose driver process has ended: their leases need not time out first."""
    if not candidates:
        return set()
    # The public state API asks the dashboard, which a cluster may not have; this asks the GCS.
    from ray._private.state import state

    table: list[dict[str, Any]] = state.job_table()
    return {job["JobID"] for job in table if job["JobID"] in candidates and job["IsDead"]}


@dataclass(frozen=True, slots=True)
class Host:
    """Example: Host("4f1c...", "10.0.0.7", 8, 9)"""

    node: str
    """Ray's name of it, another one each time it joins"""
    address: str
    num_gpus: int
    first_gpu: int = 0
    """number of its first GPU in the cluster; the others follow"""
    kind: str = ""
    """of its GPUs, as Ray finds it, e.g. h100; empty: not known"""


class Hosts:
    """Methods may be called from any thread."""

    def __init__(self, num_gpus: int) -> None:
        """`num_gpus`: that the owner holds on its own host."""
        self.own = Host(OWN, "", num_gpus)
        self._known: tuple[Host, ...] = (self.own,)
        self._first_gpus = {("", num_gpus): 0}
        """by address and number of GPUs: a host that comes back has the same numbers"""
        self._agents: dict[str, RemoteAgent] = {}
        self._lock = threading.Lock()

    @property
    def known(self) -> Sequence[Host]:
        """Return the hosts that units are given to, as `look` found them: all with GPUs if one has
        any."""
        with_gpus = [host for host in self._known if host.num_gpus]
        return with_gpus or self._known

    def living(self, node: str) -> Host | None:
        return next((host for host in self._known if host.node == node), None)

    def with_gpu(self, number: int) -> Host:
        """Return the host of the GPU with this number in the cluster. Raises EngineError if its
        host is lost."""
        for host in self._known:
            if host.first_gpu <= number < host.first_gpu + host.num_gpus:
                return host
        raise EngineError(f"the host of GPU {number} is lost")

    def look(self) -> None:
        """Ask the cluster's head which hosts there are. It blocks."""
        ray = sys.modules.get("ray")
        if ray is None or not ray.is_initialized():
            return
        own = own_node()
        alive = [node for node in ray.nodes() if node["Alive"]]
        mine = next((node for node in alive if node["NodeID"] == own), None)
        self.own = replace(self.own, kind=_kind(mine) if mine else self.own.kind)
        found = sorted((n for n in alive if n["NodeID"] != own), key=_address)
        others = [self._host(node) for node in found]
        self._known = (self.own, *others)
        with self._lock:
            for node in self._agents.keys() - {host.node for host in others}:
                del self._agents[node]

    def _host(self, node: Any) -> Host:
        address, gpus = _address(node), int(node["Resources"].get("GPU", 0))
        # A number is left out between two hosts: GPUs with successive ones are of one host.
        following = max(first + n for (_, n), first in self._first_gpus.items()) + 1
        first = self._first_gpus.setdefault((address, gpus), following)
        return Host(node["NodeID"], address, gpus, first, _kind(node))

    def agent(self, host: Host) -> RemoteAgent:
        """Return the agent of another host, a new one where it died. It blocks; raises
        EngineError."""
        with self._lock:
            known = self._agents.get(host.node)
            if known is None or known.is_dead:
                known = self._agents[host.node] = RemoteAgent(host)
            return known

    def close(self) -> None:
        """End the agents of other hosts, with all that they started."""
        with self._lock:
            for agent in self._agents.values():
                agent.end()
            self._agents.clear()


class RemoteAgent:
    """The agent of another host. Methods block, and raise EngineError if it or its host is lost."""

    def __init__(self, host: Host) -> None:
        import ray

        self.is_dead = False
        self._host = host
        actor: Any = ray.remote(resolve("host agent", _PROCESS, {}))
        self._actor = actor.options(
            num_cpus=0, num_gpus=host.num_gpus, max_concurrency=64, max_restarts=0,
            scheduling_strategy=on_node(host.node),
        ).remote(host.num_gpus)  # fmt: skip
        try:
            self._ask(self._actor.ready.remote(), _START_S)
        except EngineError:
            self.end()
            raise

    def gpu_environment(self, device: int) -> dict[str, str]:
        return self._ask(self._actor.gpu_environment.remote(device), _START_S)

    def call(self, part: str, method: str, *arguments: Any, timeout_s: float) -> Any:
        """Let `part`, a `module:Class` that is made of the agent there, do something."""
        return self._ask(self._actor.call.remote(part, method, arguments), timeout_s)

    def end(self) -> None:
        import ray

        ray.kill(self._actor, no_restart=True)

    def _ask(self, call: Any, timeout_s: float) -> Any:
        import ray
        from ray.exceptions import ActorDiedError, GetTimeoutError, RayError, RayTaskError

        try:
            return ray.get(call, timeout=timeout_s)
        except RayTaskError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, TributaryError):
                raise cause from None
            raise EngineError(f"host {self._host.address}: {cause or error}") from error
        except GetTimeoutError:
            raise EngineError(
                f"host {self._host.address} gave no answer within {timeout_s:.0f} s"
            ) from None
        except RayError as error:
            self.is_dead = isinstance(error, ActorDiedError)
            first = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise EngineError(f"the agent of host {self._host.address} is lost: {first}") from error


def _kind(node: Any) -> str:
    """Example: "accelerator_type:H100" -> "h100"."""
    found = [n for n in node["Resources"] if n.startswith(_ACCELERATOR)]
    return found[0].removeprefix(_ACCELERATOR).lower() if found else ""


def _address(node: Any) -> str:
    return node["NodeManagerAddress"]
