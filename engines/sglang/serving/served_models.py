"""A model that an endpoint serves, and the arguments of its servers and its router."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines.sglang.serving.parsers import NONE, Parsers
from engines.sglang.spec import FleetSpec
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


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One model of an endpoint, under the name that requests give as `model`."""

    name: str
    folder: Path
    parsers: Parsers
    fleet: ServedFleet

    def spec(self, server: PlacedServer, rank: int) -> FleetSpec:
        """For one node of a server. The fleet's own SGLang arguments win over ours."""
        ours: dict[str, Any] = {
            "host": server.nodes[rank].host.address,
            "served_model_name": self.name,
            "skip_tokenizer_init": False,
            "grammar_backend": "xgrammar",
        }
        if self.parsers.tools != NONE:
            ours["tool_call_parser"] = self.parsers.tools
        if self.parsers.thinking != NONE:
            ours["reasoning_parser"] = self.parsers.thinking
        if self.parsers.defaults:
            ours["default_chat_template_kwargs"] = dict(self.parsers.defaults)
        form = server_form(self.fleet, server, rank)
        return FleetSpec(
            max_total_tokens=self.fleet.max_total_tokens,
            sglang=ours | form | dict(self.fleet.sglang),
        )
