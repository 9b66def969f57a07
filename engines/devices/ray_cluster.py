"""The one place that connects to Ray, and what every detached actor of ours needs around it.

Importing this file imports no ray: `connect` does, once a process.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from typing import Any

from infra.errors import InfrastructureError, InputError

NAMESPACE = "tributary"
_PROBE_S = 5.0
_connecting = threading.Lock()


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
    in_main_thread = threading.current_thread() is threading.main_thread()
    on_sigterm = signal.getsignal(signal.SIGTERM)
    try:
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
    finally:
        if in_main_thread:  # ray.init replaces the handler; ours saves a checkpoint first
            signal.signal(signal.SIGTERM, on_sigterm)


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
    """Those of the jobs whose driver process has ended: their leases need not time out first."""
    if not candidates:
        return set()
    # The public state API asks the dashboard, which a cluster may not have; this asks the GCS.
    from ray._private.state import state

    table: list[dict[str, Any]] = state.job_table()
    return {job["JobID"] for job in table if job["JobID"] in candidates and job["IsDead"]}
