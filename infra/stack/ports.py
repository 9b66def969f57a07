"""Which ports a stack listens on: those that the environment names, others as they were or free."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping

from infra.errors import InputError
from infra.processes.ports import free_ports, is_free

VARIABLE = "TRIBUTARY_PORTS"
"""ports by part, e.g. `prefect=4200,mlflow=5000,ray_dashboard=8265`"""
PARTS = (
    "prefect",
    "mlflow",
    "ray_gcs",
    "ray_dashboard",
    "ray_object_manager",
    "ray_node_manager",
    "ray_client",
    "ray_agent_http",
    "ray_agent_grpc",
    "ray_runtime_env",
)


def choose_ports(before: Mapping[str, int]) -> dict[str, int]:
    """A port of each part; `before` are those that the home's stack had.

    Raises InputError for a part that does not exist, no port number, a port given twice, and one
    that another program has.
    """
    fixed = fixed_ports(os.environ.get(VARIABLE, ""))
    for part, port in fixed.items():
        if not is_free(port):
            raise InputError(
                f"{VARIABLE}: {part}={port}: another program listens on this port; end it, or name"
                " another port"
            )
    taken = set(fixed.values())
    kept = {
        part: port
        for part, port in before.items()
        if part in PARTS and part not in fixed and port not in taken and is_free(port)
    }
    missing = [part for part in PARTS if part not in fixed and part not in kept]
    chosen = free_ports(len(missing), avoid={*before.values(), *taken})
    return fixed | kept | dict(zip(missing, chosen, strict=True))


def fixed_ports(written: str) -> dict[str, int]:
    """What the variable says. Raises InputError that names the entry."""
    ports: dict[str, int] = {}
    for entry in filter(None, (part.strip() for part in written.split(","))):
        part, _, number = entry.partition("=")
        if part not in PARTS:
            near = difflib.get_close_matches(part, PARTS, n=1)
            hint = f" Did you mean `{near[0]}`?" if near else ""
            raise InputError(f"{VARIABLE}: {entry}: no part `{part}`; {', '.join(PARTS)}.{hint}")
        if not number.isdecimal() or not 1024 <= int(number) <= 65535:
            raise InputError(f"{VARIABLE}: {entry}: write {part}=PORT, with a port 1024 to 65535")
        if int(number) in ports.values():
            raise InputError(f"{VARIABLE}: {entry}: the port is given twice")
        ports[part] = int(number)
    return ports
