"""The hosts of the stack's Ray cluster, as its head knows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from infra.stack.record import Stack
from infra.stack.services import get_json

_GIB = 2**30


@dataclass(frozen=True, slots=True)
class HostState:
    """One host as of now. Example: HostState("10.0.0.7", "node-7", True, False, 8, 61.5)"""

    address: str
    name: str
    is_alive: bool
    is_head: bool
    gpus: int
    free_gib: float
    """memory"""


def cluster_hosts(stack: Stack) -> list[HostState]:
    """The head's host first, then by address. Of one that left and came back, how it is now; none
    on a host that only joined, or while the head does not answer."""
    if stack.head:
        return []
    return hosts_in(get_json(f"{stack.ray_dashboard}/nodes?view=summary"))


def hosts_in(answer: object) -> list[HostState]:
    """What Ray's dashboard said of the cluster's nodes, by hosts."""
    match answer:
        case {"data": {"summary": [*nodes]}}:
            states = [_state(node) for node in nodes]
        case _:
            return []
    alive_last = sorted(states, key=lambda state: state.is_alive)
    now = {state.address: state for state in alive_last}
    return sorted(now.values(), key=lambda state: (not state.is_head, state.address))


def _state(node: Any) -> HostState:
    raylet = node["raylet"]
    memory = node.get("mem") or [0, 0]  # none of a node that ended
    return HostState(
        address=raylet.get("nodeManagerAddress") or node.get("ip", ""),
        name=raylet.get("nodeManagerHostname") or node.get("hostname", ""),
        is_alive=raylet.get("state") == "ALIVE",
        is_head=bool(raylet.get("isHeadNode")),
        gpus=int((raylet.get("resourcesTotal") or {}).get("GPU", 0)),
        free_gib=memory[1] / _GIB,
    )
