"""Serves models over OpenAI's API until Ctrl-C: `tributary serve`, and `fleet` as a topology file
says.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from rich.table import Table

from engines.sglang.serving.endpoint import NONE, Endpoint, Parsers, ServedModel, parsers_of
from engines.sglang.topology import (
    PlacedServer,
    ServedFleet,
    Topology,
    check_arguments,
    hosts_of,
    place,
    topology_problems,
    with_free_ports,
)
from flows.command.app import CommandConsole, print_json
from flows.command.models.named_artifacts import find_model
from flows.explain import explain
from flows.load import option_value, parse_yaml
from infra.access import key_path, require_listenable, require_shared_key, required_key
from infra.cuda import gpu_sizes
from infra.data_files.heads import read_text
from infra.errors import InputError
from infra.home import home
from infra.processes.network import is_free

_NAME = re.compile(r"[\w.@/:+-]{1,120}")


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What `tributary serve` was asked for."""

    host: str
    port: int
    key_variable: str
    """environment variable that holds the key; empty: the key is the home's own"""
    tool_parser: str
    reasoning_parser: str
    servers: int
    tp: int
    sglang: Sequence[str]
    """NAME=VALUE of SGLang's server arguments"""
    root: str

    def fleet(self, model: str) -> ServedFleet:
        """Return the fleet of each model that it names. Raises InputError that names an option."""
        for option, number in (("--servers", self.servers), ("--tp", self.tp)):
            if number < 1:
                raise InputError(f"{option} {number}: give a whole number of at least 1")
        return ServedFleet(
            model=model,
            servers=self.servers,
            tp_per_server=self.tp,
            tool_parser=self.tool_parser,
            reasoning_parser=self.reasoning_parser,
            sglang=_passed(self.sglang),
        )


def serve(models: Sequence[str], options: ServeOptions, console: CommandConsole) -> int:
    """Serve until Ctrl-C; -> exit code."""
    require_listenable(options.host)
    served = models_to_serve(models, options)
    key = key_to_ask(options.host, options.port, options.key_variable)
    shown = shown_key(options.key_variable)
    with Endpoint(logs_folder(), options.host, options.port, key) as endpoint:
        return serve_until_stopped(endpoint, served, endpoint.start_here, shown, console)


def logs_folder() -> Path:
    """Return the folder of this command, for the logs of what it starts."""
    return home() / "logs" / "serve" / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"


def serve_until_stopped(
    endpoint: Endpoint,
    served: Sequence[ServedModel],
    start: Callable[[Sequence[ServedModel]], None],
    key: str,
    console: CommandConsole,
) -> int:
    """Serve until Ctrl-C; -> exit code. `key`: how a shell finds it."""
    told = f"starting {len(served)} model(s); logs in {endpoint.logs}"
    console.print(told, markup=False, soft_wrap=True)
    try:
        start(served)
        for line in ready_lines(endpoint.url, served, key):
            console.say(line)
        endpoint.watch()
    except KeyboardInterrupt:
        console.print("stopping")
    return 0


def models_to_serve(models: Sequence[str], options: ServeOptions) -> list[ServedModel]:
    """Raises InputError for what is wrong with any of them, before anything is started."""
    if not models:
        raise InputError(
            "name at least one model: a stage as RUN/STAGE, a digest, an alias, an HF folder or"
            " ORG/NAME of a hub"
        )
    found: dict[str, ServedModel] = {}
    for text in models:
        name, wanted = _named(text)
        made = served_model(name, options.fleet(wanted), options.root)
        name = made.name
        if name in found:
            raise InputError(
                f"two models would be called {name}: give one another name, as in other={wanted}"
            )
        found[name] = made
    return list(found.values())


def served_model(name: str, fleet: ServedFleet, root: str) -> ServedModel:
    """`name`: empty to call it as it was written. Raises InputError."""
    folder = find_model(fleet.model, root)
    if not name:
        is_name = _NAME.fullmatch(fleet.model) and not Path(fleet.model).is_absolute()
        name = fleet.model if is_name else folder.name
    if not _NAME.fullmatch(name):
        raise InputError(f"{name}: a model's name has letters, digits and any of `.@/:+_-`")
    found = parsers_of(folder)
    tools, thinking = fleet.tool_parser or found.tools, fleet.reasoning_parser or found.thinking
    chosen = replace(found, tools=tools, thinking=thinking)
    return ServedModel(name, folder, chosen, fleet)


def ready_lines(url: str, models: Sequence[ServedModel], key: str) -> list[str]:
    """Return what a person needs to use the endpoint. `key`: how a shell finds it."""
    body = {"model": models[0].name, "messages": [{"role": "user", "content": "Hello"}]}
    header = f' -H "Authorization: Bearer {key}"'
    lines = [
        f"{model.name}: {model.folder}, {_read_by('tool calls', model.parsers.tools)}, "
        + _thinking(model.parsers)
        for model in models
    ]
    return [
        *lines,
        f"ready: {url}/v1  (Ctrl-C or SIGTERM ends it)",
        f"  curl {url}/v1/chat/completions{header} -H 'Content-Type: application/json' \\",
        f"    -d '{json.dumps(body)}'",
    ]


def _thinking(parsers: Parsers) -> str:
    if parsers.thinking == NONE and parsers.mode in ("", "never"):
        return "no thinking: the chat template has no place for it"
    said = _read_by("thinking", parsers.thinking)
    return f"{said}, {parsers.mode}" if parsers.mode else said


def _read_by(what: str, parser: str) -> str:
    return f"{what} left in the text" if parser == NONE else f"{what} by {parser}"


def shown_key(variable: str) -> str:
    """Return how a shell finds the key; the key itself is in no output."""
    return f"${variable}" if variable else f"$(cat {key_path()})"


def _named(text: str) -> tuple[str, str]:
    """Name, if there is one, and model of `NAME=MODEL`."""
    name, equals, wanted = text.partition("=")
    if equals and not name:
        raise InputError(f"{text}: write NAME=MODEL, or the model alone: {wanted}")
    is_name = equals and not any(sign in name for sign in ":/")  # pypi:PACKAGE==VERSION/FILE
    return (name, wanted) if is_name else ("", text)


def _passed(given: Sequence[str]) -> dict[str, Any]:
    passed: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise InputError(f"--sglang {text}: write it as NAME=VALUE, e.g. context_length=8192")
        passed[name] = option_value(f"--sglang {text}", value)
    try:
        check_arguments(passed)
    except InputError as error:
        raise InputError(f"--sglang {str(error).removeprefix('fleet.sglang.')}") from None
    return passed


def key_to_ask(host: str, port: int, variable: str) -> str:
    """Return what requests must carry. Raises InputError, also where no server can listen."""
    require_listenable(host)
    if variable and not os.environ.get(variable):
        raise InputError(f"--api-key-from {variable}: that variable is not set")
    if not is_free(port):
        raise InputError(f"port {port} is taken: choose another with --port")
    return os.environ[variable] if variable else required_key()


@dataclass(frozen=True, slots=True)
class PlannedFleets:
    """A topology that can be started."""

    topology: Topology
    servers: Sequence[PlacedServer]
    addresses: Sequence[str]
    """of the hosts; the first one has the routers"""


def up(file: str, on: str, root: str, console: CommandConsole) -> int:
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
    asked = (topology.host, topology.port, topology.api_key_from)
    key = key_to_ask(*asked) if is_first else ""
    models = [served_model(name, fleet, root) for name, fleet in topology.fleets.items()]
    shown = shown_key(topology.api_key_from)
    with Endpoint(logs_folder(), topology.host, topology.port, key) as endpoint:
        start = partial(endpoint.start, servers=planned.servers, here=here, has_routers=is_first)
        return serve_until_stopped(endpoint, models, start, shown, console)


def check(file: str, json: bool, console: CommandConsole) -> int:
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
        text = read_text(file.expanduser())
    except OSError as error:
        told = f"{file} cannot be read: {error.strerror}; give the file of a topology"
        raise InputError(told) from error
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
