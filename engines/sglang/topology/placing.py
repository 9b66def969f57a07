"""Where the servers of a topology lie: which devices of which hosts, and which ports.

It is the same on every host, so that each host starts its own part without asking another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from engines.sglang.topology.spec import HostDevices, ServedFleet, Topology
from infra.cuda import gpu_sizes
from infra.errors import InputError
from infra.processes.network import free_ports

Task: TypeAlias = Literal["whole", "prefill", "decode"]
PORTS_PER_SERVER = 20
"""HTTP, bootstrap and rendezvous, and those that SGLang derives from the last one"""


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
        """Of its first node."""
        return self.nodes[0].host.address

    @property
    def url(self) -> str:
        return f"http://{self.address}:{self.port}"


def hosts_of(topology: Topology, own_gpus: int) -> Sequence[HostDevices]:
    """Those that are stated, or this one with its GPUs; without GPUs with as many shares of its
    cores as are wanted."""
    return topology.hosts or (HostDevices(devices=own_gpus or devices_needed(topology)),)


def place(topology: Topology, hosts: Sequence[HostDevices]) -> list[PlacedServer]:
    """Every server of every fleet, as the fleets are written. Raises InputError for a fleet that
    finds no room.

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
    """Of fleets on this host alone. Raises InputError."""
    topology = Topology(fleets=dict(fleets))
    return with_free_ports(place(topology, hosts_of(topology, len(gpu_sizes()))))


def with_free_ports(placed: Sequence[PlacedServer]) -> list[PlacedServer]:
    """The same servers on any free ports, where all of them are on this host."""
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
    """By all servers together."""
    return sum(
        fleet.tp_per_server * count
        for fleet in topology.fleets.values()
        for _, count in tasks_of(fleet)
    )


def tasks_of(fleet: ServedFleet) -> Iterator[tuple[Task, int]]:
    """What its servers do, and how many do it."""
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
