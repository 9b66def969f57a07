"""A model that an endpoint serves, and what SGLang is told of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines.sglang.serving.parsers import NONE, Parsers
from engines.sglang.spec import FleetSpec
from engines.sglang.topology.arguments import server_form
from engines.sglang.topology.placing import PlacedServer
from engines.sglang.topology.spec import ServedFleet


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
