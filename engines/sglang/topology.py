"""What a person writes of fleets that serve without training (`tributary fleet up FILE`), on which
devices of which hosts and on which ports their servers lie, and what of it cannot run.

The places are the same on every host, so that each host starts its own part without asking another.
Imports no SGLang.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import AfterValidator, Field, NonNegativeInt, PositiveInt, model_validator

from engines.sglang.server_options import check_known
from infra.access import LOOPBACK
from infra.config import Config
from infra.cuda import gpu_sizes, has_cuda
from infra.errors import InputError
from infra.processes.network import free_ports

Task: TypeAlias = Literal["whole", "prefill", "decode"]
PORTS_PER_SERVER = 20
"""HTTP, bootstrap and rendezvous, and those that SGLang derives from the last one"""
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


def _ipv4(text: str) -> str:
    try:
        return str(ipaddress.IPv4Address(text))
    except ValueError:
        raise ValueError(f"{text!r} is no IPv4 address; write one, e.g. 10.0.0.2") from None


class HostDevices(Config):
    """A host, and what of it the fleets may use."""

    address: Annotated[str, AfterValidator(_ipv4)] = LOOPBACK
    """where its servers listen, and the others reach them"""
    devices: PositiveInt = 1
    """GPUs, counted from 0; without GPUs, shares of its cores"""
    kind: str = ""
    """of the devices, e.g. h100; fleets ask for it as `device`"""


class Disaggregation(Config):
    """Servers that prefill prompts, and servers that decode from the keys and values they send."""

    prefill: PositiveInt = 1
    """servers"""
    decode: PositiveInt = 1
    """servers"""
    transfer: Literal["mooncake", "nixl"] = "mooncake"
    """what moves keys and values between them"""


class ServedFleet(Config):
    """The servers of one model."""

    model: str
    """an artifact, a stage, an alias, a folder, or hf:ORG/NAME@REVISION"""
    servers: PositiveInt = 1
    """that answer whole requests"""
    disaggregated: Disaggregation | None = None
    """in place of those: prefill and decode apart"""
    tp_per_server: PositiveInt = 1
    """devices of one server"""
    attention_dp: PositiveInt = 1
    """parts of a server that each attend to requests of their own; experts and MLPs stay shared"""
    hosts_per_server: PositiveInt = 1
    """hosts that one server's devices lie on, as many on each"""
    device: str = ""
    """the kind of device that it wants; empty: any"""
    routing: Literal["cache_aware", "sticky", "spread"] = "cache_aware"
    """cache_aware: to the server that knows the longest beginning of a request; sticky: by the
    request's header X-SMG-Routing-Key; spread: in turn"""
    max_requests: PositiveInt | None = None
    """most requests under way at the fleet's servers together; None: no bound"""
    max_waiting: NonNegativeInt = 1000
    """requests beyond `max_requests` that may wait; further ones are refused with 429"""
    max_wait_seconds: PositiveInt = 600
    """how long each may wait; then it is refused with 408"""
    max_total_tokens: PositiveInt | None = None
    """KV-cache capacity of one server, in tokens; None: on a GPU what fits beside the weights, on a
    CPU 16384"""
    tool_parser: str = ""
    """SGLang's parser of tool calls; none: no parsing; empty: by the chat template"""
    reasoning_parser: str = ""
    """SGLang's parser of thinking; likewise"""
    sglang: dict[str, Any] = Field(default_factory=dict)
    """SGLang server arguments, passed through"""

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        if self.disaggregated is not None and "servers" in self.model_fields_set:
            raise ValueError(
                "`servers` answer whole requests and `disaggregated` ones do not; write one of them"
            )
        return self


class Topology(Config):
    """Fleets on hosts, behind one address."""

    host: Annotated[str, AfterValidator(_ipv4)] = LOOPBACK
    """address that clients talk to; beyond loopback a key is required"""
    port: Annotated[int, Field(ge=1, le=65535)] = 8000
    api_key_from: str = ""
    """environment variable with the key that requests must carry"""
    fleets: Annotated[dict[str, ServedFleet], Field(min_length=1)]
    """by the name that requests give as `model`"""
    hosts: Annotated[tuple[HostDevices, ...], Field(min_length=1)] | None = None
    """None: this host alone, with all of its devices. The first one has the routers"""
    first_port: Annotated[int, Field(ge=1024, le=60000)] = 31000
    """where several hosts are: servers take 20 ports each from here on"""

    @model_validator(mode="after")
    def _different_hosts(self) -> Self:
        addresses = [host.address for host in self.hosts or ()]
        for address in addresses:
            if addresses.count(address) > 1:
                raise ValueError(f"hosts: {address} is named twice; write each host once")
        return self


@dataclass(frozen=True, slots=True)
class Node:
    """The part of a server on one host."""

    host: HostDevices
    first_device: int
    devices: int


@dataclass(frozen=True, slots=True)
class PlacedServer:
    """One server; its first node answers requests."""

    fleet: str
    task: Task
    number: int
    """among those of its fleet and task"""
    nodes: tuple[Node, ...]
    port: int
    bootstrap_port: int
    """where a decode server asks for a prefill server's keys and values"""
    rendezvous_port: int
    """where its nodes meet"""

    @property
    def name(self) -> str:
        task = "" if self.task == "whole" else f"{self.task}-"
        return f"{self.fleet}-{task}{self.number}"

    @property
    def address(self) -> str:
        """Return the address of its first node."""
        return self.nodes[0].host.address

    @property
    def url(self) -> str:
        return f"http://{self.address}:{self.port}"


def hosts_of(topology: Topology, own_gpus: int) -> Sequence[HostDevices]:
    """Return the hosts that are stated, or this one with its GPUs; without GPUs with as many shares
    of its cores as are wanted."""
    return topology.hosts or (HostDevices(devices=own_gpus or devices_needed(topology)),)


def place(topology: Topology, hosts: Sequence[HostDevices]) -> list[PlacedServer]:
    """Place every server of every fleet, as the fleets are written. Raises InputError for a fleet
    that finds no room.

    Servers with the most devices on a host are placed first, so that each lies on neighbours.
    """
    free = {host.address: 0 for host in hosts}
    wanted: list[tuple[str, ServedFleet, Task, int]] = [
        (name, fleet, task, number)
        for name, fleet in topology.fleets.items()
        for task, count in tasks_of(fleet)
        for number in range(count)
    ]
    order = sorted(range(len(wanted)), key=lambda index: -_on_a_host(wanted[index][1]))
    placed: dict[int, PlacedServer] = {}
    for index in order:
        name, fleet, task, number = wanted[index]
        nodes = _nodes(name, fleet, hosts, free)
        port = topology.first_port + PORTS_PER_SERVER * index
        placed[index] = PlacedServer(name, task, number, nodes, port, port + 1, port + 2)
    return [placed[index] for index in range(len(wanted))]


def place_here(fleets: Mapping[str, ServedFleet]) -> list[PlacedServer]:
    """Place the servers of fleets on this host alone. Raises InputError."""
    topology = Topology(fleets=dict(fleets))
    return with_free_ports(place(topology, hosts_of(topology, len(gpu_sizes()))))


def with_free_ports(placed: Sequence[PlacedServer]) -> list[PlacedServer]:
    """Return the same servers on any free ports, where all of them are on this host."""
    ports = iter(free_ports(3 * len(placed)))
    return [
        replace(
            server,
            port=next(ports),
            bootstrap_port=next(ports),
            rendezvous_port=next(ports),
        )
        for server in placed
    ]


def devices_needed(topology: Topology) -> int:
    """Count the devices that are needed by all servers together."""
    return sum(
        fleet.tp_per_server * count
        for fleet in topology.fleets.values()
        for _, count in tasks_of(fleet)
    )


def tasks_of(fleet: ServedFleet) -> Iterator[tuple[Task, int]]:
    """Yield what its servers do, and how many do it."""
    if fleet.disaggregated is None:
        yield "whole", fleet.servers
    else:
        yield "prefill", fleet.disaggregated.prefill
        yield "decode", fleet.disaggregated.decode


def _on_a_host(fleet: ServedFleet) -> int:
    """Devices of one server there."""
    return fleet.tp_per_server // fleet.hosts_per_server


def _nodes(
    name: str, fleet: ServedFleet, hosts: Sequence[HostDevices], free: dict[str, int]
) -> tuple[Node, ...]:
    """The next free devices; `free` has the first free one of each host, and is moved on."""
    size = _on_a_host(fleet)
    fitting = [host for host in hosts if not fleet.device or host.kind == fleet.device]
    chosen = [host for host in fitting if host.devices - free[host.address] >= size]
    if len(chosen) < fleet.hosts_per_server:
        raise InputError(_no_room(name, fleet, hosts, free))
    nodes: list[Node] = []
    for host in chosen[: fleet.hosts_per_server]:
        nodes.append(Node(host, free[host.address], size))
        free[host.address] += size
    return tuple(nodes)


def _no_room(
    name: str, fleet: ServedFleet, hosts: Sequence[HostDevices], free: dict[str, int]
) -> str:
    kinds = sorted({host.kind for host in hosts if host.kind})
    if fleet.device and fleet.device not in kinds:
        return (
            f"fleets.{name}.device: no host has {fleet.device!r}; hosts have"
            f" {', '.join(kinds) or 'no kind: write it as hosts: kind'}"
        )
    size, many = _on_a_host(fleet), fleet.hosts_per_server
    of_kind = f" of kind {fleet.device}" if fleet.device else ""
    left = ", ".join(f"{h.address}: {h.devices - free[h.address]} of {h.devices}" for h in hosts)
    return (
        f"fleets.{name}: a server needs {size} free devices{of_kind} on"
        f" {'one host' if many == 1 else f'each of {many} hosts'}; free are {left}: lower its"
        " servers or tp_per_server, spread a server over more hosts (hosts_per_server), or state"
        " more hosts"
    )


def topology_problems(topology: Topology, own_gpus: int) -> Iterator[str]:
    """Yield every contradiction; if there is none, it can be placed, and SGLang takes its
    arguments."""
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
