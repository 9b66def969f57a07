"""Which ports a stack listens on: those that the environment names, others as they were or free."""

from __future__ import annotations

import difflib
import ipaddress
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

import httpx
import psutil

from infra.access import is_loopback, key_path
from infra.errors import InputError
from infra.processes.children import family
from infra.processes.network import certificates, free_ports, is_free
from infra.stack.installed import Check

if TYPE_CHECKING:
    from infra.stack.record import Stack

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
PROBE_SECONDS = 3.0
_ASKED = (401, 403)


def choose_ports(before: Mapping[str, int]) -> dict[str, int]:
    """Return a port of each part; `before` are those that the home's stack had.

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
    """Return what the variable says. Raises InputError that names the entry."""
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


def exposure(stack: Stack) -> Check:
    """Return a warning where more than this machine reaches a port, a failure where a server of
    ours would let a stranger in."""
    strangers = unguarded(stack)
    if strangers:
        told = f"{', '.join(strangers)} on {stack.host} accept everyone, without a key"
        return Check("network", False, told, "`tributary down`, then `tributary up`")
    ports = open_ports(stack)
    if is_loopback(stack.host) and not ports:
        told = f"servers listen on {stack.host} only, and ask for the key in {key_path()}"
        return Check("network", True, told, "")
    return Check("network", True, _protection(stack, ports), "", warns=True)


def open_ports(stack: Stack) -> dict[int, str]:
    """Ports of the stack's processes that more than loopback reaches, with the program's name."""
    found: dict[int, str] = {}
    for process in family(stack.services.values(), stack.mark):
        try:
            name, connections = process.name(), process.net_connections("inet")
        except psutil.Error:  # it ended meanwhile
            continue
        for connection in connections:
            if connection.status == psutil.CONN_LISTEN and not _is_local(connection.laddr.ip):
                found[connection.laddr.port] = name
    return found


def unguarded(stack: Stack) -> list[str]:
    """Servers that answer without a key."""
    asked = {
        "Prefect": f"{stack.prefect_api}/admin/version",
        "MLflow": stack.mlflow_uri,
        "Ray": f"{stack.ray_dashboard}/api/version",
    }
    return [name for name, url in asked.items() if _answers_anyone(url)]


def _is_local(address: str) -> bool:
    parsed = ipaddress.ip_address(address)
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return (mapped or parsed).is_loopback


def _answers_anyone(url: str) -> bool:
    try:
        reply = httpx.get(url, timeout=PROBE_SECONDS, trust_env=False, verify=certificates())
    except httpx.HTTPError:
        return False
    return reply.status_code not in _ASKED


def _protection(stack: Stack, ports: Mapping[int, str]) -> str:
    return (
        f"servers listen on {stack.host}: Prefect, MLflow, SGLang and its router ask for the key "
        f"in {key_path()}, Ray for the same as its token. Open to everyone: health pages, the "
        "empty frames of the pages and the router's list of models. Nothing is encrypted: keep the "
        "network private. All ports that others reach: "
        f"{_shown(ports)}"
    )


def _shown(ports: Mapping[int, str]) -> str:
    return ", ".join(f"{name} {port}" for port, name in sorted(ports.items()))
