"""What of a topology cannot run, each with the reason and what to do. Imports no SGLang."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

from engines.sglang.server_options import check_known
from engines.sglang.topology.placing import hosts_of, place
from engines.sglang.topology.spec import ServedFleet, Topology
from infra.cuda import has_cuda
from infra.errors import InputError

_FORM = {
    "attn_dp_size": "attention_dp",
    "base_gpu_id": "hosts: devices",
    "disaggregation_bootstrap_port": "first_port",
    "disaggregation_mode": "disaggregated",
    "disaggregation_transfer_backend": "disaggregated: transfer",
    "dist_init_addr": "first_port",
    "max_total_tokens": "max_total_tokens",
    "nnodes": "hosts_per_server",
    "node_rank": "hosts_per_server",
    "reasoning_parser": "reasoning_parser",
    "tool_call_parser": "tool_parser",
    "tp_size": "tp_per_server",
}
"""SGLang's names, and what a topology calls them"""
_ALLOWED = ("context_length",)
"""which a stage has a field of its own for"""


def topology_problems(topology: Topology, own_gpus: int) -> Iterator[str]:
    """Every contradiction; none: it can be placed, and SGLang takes its arguments."""
    hosts = hosts_of(topology, own_gpus)
    found = [
        f"fleets.{name}.{line}"
        for name, fleet in topology.fleets.items()
        for line in _of_fleet(fleet, len(hosts))
    ]
    if not found:
        try:
            place(topology, hosts)
        except InputError as error:
            found = [str(error)]
    yield from found


def _of_fleet(fleet: ServedFleet, num_hosts: int) -> Iterator[str]:
    yield from _layout(fleet, num_hosts)
    yield from _disaggregation(fleet)
    if fleet.sglang.get("disable_radix_cache") and fleet.routing == "cache_aware":
        yield "routing: cache_aware needs the cache that sglang.disable_radix_cache switches off"
    for name in fleet.sglang:
        if name in _FORM:
            yield f"sglang.{name}: write it as `{_FORM[name]}`"
    try:
        check_arguments(fleet.sglang)
    except InputError as error:
        yield str(error).removeprefix("fleet.")


def check_arguments(passed: Mapping[str, Any]) -> None:
    """Raises InputError for an argument that SGLang does not know, or that is not a person's to
    set; those that a topology has fields for are left to others."""
    check_known({k: v for k, v in passed.items() if k not in {*_FORM, *_ALLOWED}})


def _layout(fleet: ServedFleet, num_hosts: int) -> Iterator[str]:
    tp, many = fleet.tp_per_server, fleet.hosts_per_server
    if many > num_hosts:
        yield f"hosts_per_server is {many}, of {num_hosts} hosts: state more hosts, or lower it"
    if tp % many:
        yield f"hosts_per_server is {many}, which does not divide tp_per_server ({tp})"
    if tp % fleet.attention_dp:
        yield (
            f"attention_dp is {fleet.attention_dp}, which does not divide tp_per_server ({tp}):"
            " its parts share a server's devices evenly"
        )


def _disaggregation(fleet: ServedFleet) -> Iterator[str]:
    apart = fleet.disaggregated
    if apart is None:
        return
    if not has_cuda():
        yield (
            "disaggregated: keys and values go from one GPU's memory to another's, and this host"
            " has no GPU: write `servers` instead"
        )
    elif find_spec(apart.transfer) is None:
        yield (
            f"disaggregated.transfer: the package {apart.transfer} is not installed on this host:"
            " install it, or choose the other"
        )
    if fleet.routing == "sticky":
        yield (
            "routing: sticky follows keys, and with `disaggregated` a request has two servers:"
            " choose cache_aware or spread"
        )
