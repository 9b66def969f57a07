"""`tributary fleet`: fleets that serve without training, as a topology file says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import yaml
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table

from engines.sglang.serving.endpoint import Endpoint
from engines.sglang.topology.placing import PlacedServer, hosts_of, place, with_free_ports
from engines.sglang.topology.problems import topology_problems
from engines.sglang.topology.spec import Topology
from flows.command.models.serve import (
    key_to_ask,
    logs_folder,
    serve_until_stopped,
    served_model,
    shown_key,
)
from flows.command.output import print_json
from flows.explain import explain
from flows.load import parse_yaml
from infra.access import require_shared_key
from infra.cuda import gpu_sizes
from infra.errors import InputError


@dataclass(frozen=True, slots=True)
class PlannedFleets:
    """A topology that can be started."""

    topology: Topology
    servers: Sequence[PlacedServer]
    addresses: Sequence[str]
    """of the hosts; the first one has the routers"""


def up(file: str, on: str, root: str, console: Console) -> int:
    """Start this host's part and serve until Ctrl-C; -> exit code."""
    planned = planned_fleets(Path(file))
    topology, here = planned.topology, on or planned.addresses[0]
    if here not in planned.addresses:
        raise InputError(
            f"--on {here}: the file has no such host; it has {', '.join(planned.addresses)}"
        )
    is_first = here == planned.addresses[0]
    if len(planned.addresses) > 1:
        require_shared_key()
    key = key_to_ask(topology.port, topology.api_key_from) if is_first else ""
    models = [served_model(name, fleet, root) for name, fleet in topology.fleets.items()]
    shown = shown_key(topology.api_key_from)
    with Endpoint(logs_folder(), topology.host, topology.port, key) as endpoint:
        start = partial(endpoint.start, servers=planned.servers, here=here, has_routers=is_first)
        return serve_until_stopped(endpoint, models, start, shown, console)


def check(file: str, json: bool, console: Console) -> int:
    """Show what would lie where; -> exit code."""
    planned = planned_fleets(Path(file))
    if json:
        print_json({"servers": [_plain(server) for server in planned.servers]})
        return 0
    table = Table("fleet", "server", "does", "devices", "address")
    for server in planned.servers:
        devices = "; ".join(_devices(server))
        table.add_row(server.fleet, server.name, server.task, devices, server.url)
    console.print(table)
    return 0


def planned_fleets(file: Path) -> PlannedFleets:
    """Raises InputError that says everything that is wrong with the file."""
    try:
        text = file.expanduser().read_text()
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error}") from error
    try:
        topology = Topology.model_validate(parse_yaml(text))
    except (yaml.YAMLError, InputError) as error:
        raise InputError(f"{file}: {error}") from None
    except ValidationError as error:
        raise InputError("\n".join([f"{file}:", *explain(error, Topology)])) from None
    own_gpus = len(gpu_sizes())
    if problems := list(topology_problems(topology, own_gpus)):
        raise InputError("\n".join([f"{file}:", *problems]))
    hosts = hosts_of(topology, own_gpus)
    servers = place(topology, hosts)
    if topology.hosts is None:
        servers = with_free_ports(servers)
    return PlannedFleets(topology, servers, [host.address for host in hosts])


def _devices(server: PlacedServer) -> list[str]:
    return [
        f"{node.host.address}: {node.first_device}"
        + (f" to {node.first_device + node.devices - 1}" if node.devices > 1 else "")
        for node in server.nodes
    ]


def _plain(server: PlacedServer) -> dict[str, object]:
    return {
        "fleet": server.fleet,
        "name": server.name,
        "task": server.task,
        "url": server.url,
        "nodes": [
            {
                "host": node.host.address,
                "kind": node.host.kind,
                "first_device": node.first_device,
                "devices": node.devices,
            }
            for node in server.nodes
        ],
    }
