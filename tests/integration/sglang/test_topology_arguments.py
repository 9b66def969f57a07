"""The arguments of every form of a fleet, read by SGLang's and by the router's own parsers."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from engines.sglang.servers.router import router_words
from engines.sglang.serving.endpoint import Parsers, ServedModel, router_form
from engines.sglang.topology import PlacedServer, ServedFleet, Topology, hosts_of, place
from tests.parts.sglang_python import SglangPython

pytestmark = pytest.mark.integration

HOSTS = [{"address": f"10.0.0.{n}", "devices": 8} for n in (1, 2)]
FORMS: Mapping[str, dict[str, Any]] = {
    "whole": {"servers": 2, "tp_per_server": 2},
    "attention in parts": {"tp_per_server": 8, "attention_dp": 4},
    "two hosts": {"tp_per_server": 16, "hosts_per_server": 2, "attention_dp": 2},
    "disaggregated": {"tp_per_server": 2, "disaggregated": {"prefill": 2, "decode": 1}},
    "disaggregated, two hosts, attention in parts": {
        "tp_per_server": 8,
        "hosts_per_server": 2,
        "attention_dp": 2,
        "disaggregated": {"transfer": "nixl"},
    },
}
POLICIES = {"cache_aware": "cache_aware", "sticky": "manual", "spread": "round_robin"}


def read_by_sglang(asked: dict[str, Any]) -> dict[str, Any]:
    """What its parser and its router's make of command lines; where SGLang may be imported."""
    from sglang.srt.server_args import ServerArgs
    from sglang_router.launch_router import parse_router_args

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    servers = [vars(parser.parse_args(words)) for words in asked["servers"]]
    routers = [dataclasses.asdict(parse_router_args(words)) for words in asked["routers"]]
    return {"servers": servers, "routers": routers}


@dataclass(frozen=True, slots=True)
class Case:
    """A node of a server, and what SGLang made of its arguments."""

    server: PlacedServer
    rank: int
    fleet: ServedFleet
    options: Mapping[str, Any]


def _placed(form: dict[str, Any]) -> tuple[ServedFleet, list[PlacedServer]]:
    topology = Topology.model_validate(
        {"fleets": {"policy": {"model": "m"} | form}, "hosts": HOSTS}
    )
    return topology.fleets["policy"], place(topology, hosts_of(topology, 0))


def _cases() -> list[Case]:
    cases: list[Case] = []
    for form in FORMS.values():
        fleet, servers = _placed(form)
        model = ServedModel("policy", Path("m"), Parsers("none", "none"), fleet)
        for server in servers:
            for rank in range(len(server.nodes)):
                options = dict(model.spec(server, rank).sglang)
                options |= {"model_path": "m", "tp_size": fleet.tp_per_server}
                cases.append(Case(server, rank, fleet, options | {"port": server.port}))
    return cases


def _server_words(options: Mapping[str, Any]) -> list[str]:
    words: list[str] = []
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        words += [flag] if value is True else [] if value is False else [flag, str(value)]
    return words


def test_both_parsers_read_what_the_forms_say(sglang_python: SglangPython) -> None:
    cases = _cases()
    bound = {"max_requests": 64, "max_waiting": 8, "max_wait_seconds": 30}
    fleets = [
        _placed(form | {"routing": routing} | bound)
        for form, routing in product(FORMS.values(), POLICIES)
    ]
    asked = {
        "servers": [_server_words(case.options) for case in cases],
        "routers": [router_words(router_form(*fleet)) for fleet in fleets],
    }
    read = sglang_python(read_by_sglang, asked)
    for case, found in zip(cases, read["servers"], strict=True):
        _check_server(case, found)
    for (fleet, servers), found in zip(fleets, read["routers"], strict=True):
        _check_router(fleet, servers, found)


def _check_server(case: Case, found: Mapping[str, Any]) -> None:
    for name, value in case.options.items():
        assert found[name] == value, name
    assert found["host"] == case.server.nodes[case.rank].host.address
    assert (found["nnodes"], found["node_rank"]) == (len(case.server.nodes), case.rank)
    assert found["attn_dp_size"] == case.fleet.attention_dp
    task = "null" if case.server.task == "whole" else case.server.task
    assert found["disaggregation_mode"] == task


def _check_router(
    fleet: ServedFleet, servers: list[PlacedServer], found: Mapping[str, Any]
) -> None:
    assert found["policy"] == POLICIES[fleet.routing]
    bound = ("max_concurrent_requests", "queue_size", "queue_timeout_secs")
    assert [found[name] for name in bound] == [64, 8, 30]
    prefill = [[s.url, s.bootstrap_port] for s in servers if s.task == "prefill"]
    assert found["pd_disaggregation"] == bool(prefill)
    assert found["prefill_urls"] == prefill
    assert found["decode_urls"] == [s.url for s in servers if s.task == "decode"]
