"""What the form of a fleet adds to the arguments of its servers and of its router."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engines.sglang.topology.placing import PlacedServer
from engines.sglang.topology.spec import ServedFleet

_POLICIES: Mapping[str, str] = {
    "cache_aware": "cache_aware",
    "sticky": "manual",
    "spread": "round_robin",
}


def server_form(fleet: ServedFleet, server: PlacedServer, rank: int) -> dict[str, Any]:
    """Fields of SGLang's ServerArgs for one of a server's nodes."""
    form: dict[str, Any] = {}
    if fleet.attention_dp > 1:
        form["attn_dp_size"] = fleet.attention_dp
    if len(server.nodes) > 1:
        form |= {
            "nnodes": len(server.nodes),
            "node_rank": rank,
            "dist_init_addr": f"{server.address}:{server.rendezvous_port}",
        }
    if fleet.disaggregated is not None:
        form |= {
            "disaggregation_mode": server.task,
            "disaggregation_transfer_backend": fleet.disaggregated.transfer,
            "disaggregation_bootstrap_port": server.bootstrap_port,
        }
    return form


def router_form(fleet: ServedFleet, servers: Sequence[PlacedServer]) -> dict[str, object]:
    """Flags of sglang-router. A router of disaggregated servers is told of them at its start."""
    flags: dict[str, object] = {"--policy": _POLICIES[fleet.routing]}
    if fleet.max_requests is not None:
        flags |= {
            "--max-concurrent-requests": fleet.max_requests,
            "--queue-size": fleet.max_waiting,
            "--queue-timeout-secs": fleet.max_wait_seconds,
        }
    if fleet.disaggregated is not None:
        flags |= {
            "--pd-disaggregation": None,
            "--prefill": [(s.url, s.bootstrap_port) for s in servers if s.task == "prefill"],
            "--decode": [(s.url,) for s in servers if s.task == "decode"],
        }
    return flags
