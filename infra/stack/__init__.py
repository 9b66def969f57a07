"""The local stack of one home: Prefect server and worker, Ray head, MLflow server."""

from infra.stack.control import ServiceState, down, load_stack, status, up
from infra.stack.doctor import HostState, Leftover, clean, cluster_hosts, doctor
from infra.stack.installed import Check
from infra.stack.record import WORK_POOL, Stack, require_ours

__all__ = [
    "WORK_POOL",
    "Check",
    "HostState",
    "Leftover",
    "ServiceState",
    "Stack",
    "clean",
    "cluster_hosts",
    "doctor",
    "down",
    "load_stack",
    "require_ours",
    "status",
    "up",
]
