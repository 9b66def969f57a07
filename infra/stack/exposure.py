"""Which other machines can reach the stack, and what keeps them out."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping

import httpx
import psutil

from infra.access import is_loopback, key_path
from infra.processes.children import family
from infra.stack.check import Check
from infra.stack.record import Stack

PROBE_SECONDS = 3.0
_ASKED = (401, 403)


def exposure(stack: Stack) -> Check:
    """A warning where more than this machine reaches a port, a failure where a server of ours
    would let a stranger in."""
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
        reply = httpx.get(url, timeout=PROBE_SECONDS, trust_env=False)
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
