"""OpenAI's API for one or several models: each has servers behind a router of its own.

client ── router (HOST:PORT, with the key) ── servers (loopback)                 one model
client ── gateway (HOST:PORT, with the key) ─┬─ router ── servers of a model     several
                                             └─ router ── servers of another

Behind the first of them, each asks the next for the key of this home.

A model's chat template tells which of SGLang's parsers read its tool calls and thoughts. They
assume that thinking is on where a request says nothing, and some that it is always on. So every
server is told what the template itself does then, and gets the parser that begins as the template
does: inside a thought, or outside.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from engines.chat.call_forms import GLM, HERMES, QWEN3_CODER, CallForm
from engines.chat.chat_folder import load_chat_folder
from engines.chat.mode import FREELY, Mode, Thoughts
from engines.chat.pieces import Pieces
from engines.chat.template import SWITCHES
from engines.devices.child_processes import ChildProcesses, log_tail
from engines.families.common.model_config import read_config
from engines.sglang.http import call
from engines.sglang.servers.router import Router
from engines.sglang.servers.server import Server
from engines.sglang.serving.models_gateway import Gateway
from engines.sglang.spec import FleetSpec
from engines.sglang.topology import PlacedServer, ServedFleet, place_here
from engines.types import Message, ToolCall
from infra.access import LOOPBACK, forget_key, note_key, reachable, required_key
from infra.cuda import has_cuda
from infra.errors import EngineError

NONE = "none"
AUTO = "auto"
"""SGLang looks at the template itself"""
_CALLER = Message("assistant", "", tool_calls=(ToolCall("tool", {"key": "value"}),))
_POLICIES: Mapping[str, str] = {
    "cache_aware": "cache_aware",
    "sticky": "manual",
    "spread": "round_robin",
}


@dataclass(frozen=True, slots=True)
class Parsers:
    """Names of SGLang's parsers; `none` leaves the text as the model wrote it."""

    tools: str = NONE
    thinking: str = NONE
    defaults: Mapping[str, bool] = field(default_factory=dict[str, bool])
    """`chat_template_kwargs` of requests that do not give them"""
    mode: str = ""
    """when the model thinks, in words"""


def parsers_of(folder: Path) -> Parsers:
    """For the forms of calls that Tributary trains, the parser of exactly that form; for others
    what SGLang finds. Raises InputError for a folder without a chat template."""
    pieces = Pieces(load_chat_folder(folder).template)
    form, mode = pieces.call_form(), pieces.mode
    defaults = {mode.switch: mode.default} if mode.switch else {}
    if mode.thoughts is Thoughts.FREE:  # the parser of thoughts that the model opens itself
        defaults = {SWITCHES[0]: False}
    parser = _tool_parser(pieces, form, folder)
    return Parsers(parser, _thought_parser(mode, form), defaults, _said(mode))


def _tool_parser(pieces: Pieces, form: CallForm | None, folder: Path) -> str:
    if form is GLM:
        # GLM-4.5 writes a line feed after the tool's name, GLM-4.7 and our random models do not.
        is_bare = "<tool_call>tool<arg_key>" in pieces.turn(_CALLER, thinking=False)
        return "glm47" if is_bare else "glm45"
    if form is HERMES and str(read_config(folder).get("model_type", "")).startswith("qwen"):
        return "qwen25"
    return form.server_parser if form is not None and form.server_parser else AUTO


def _thought_parser(mode: Mode, form: CallForm | None) -> str:
    match mode.thoughts:
        case Thoughts.NONE:
            return NONE
        case Thoughts.FOREIGN:
            return AUTO
        case Thoughts.ALWAYS:  # both begin inside a thought; the first ends it where a call begins
            return "qwen3-thinking" if form in (QWEN3_CODER, GLM, HERMES) else "deepseek-r1"
        case Thoughts.FREE:
            return "qwen3"
        case Thoughts.CHANNEL:
            return "gpt-oss"
        case Thoughts.SWITCHED if form is GLM:
            return "glm45"
        case Thoughts.SWITCHED:  # each reads the variable of its name
            return "qwen3" if mode.switch == SWITCHES[0] else "deepseek-v3"


def _said(mode: Mode) -> str:
    if mode.switch:
        state = "on" if mode.default else "off"
        return f"{state} unless a request's chat_template_kwargs have {mode.switch}"
    if mode.thoughts is Thoughts.ALWAYS:
        return "always on"
    return "left to the model" if mode.thoughts in FREELY else "never"


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


_LAUNCHER = "engines.sglang.servers.server_launcher"
_ROUTER: Mapping[str, object] = {"--log-level": "error"}
_LOOK_S = 0.5
_ROUTES_S = 120.0
"""what a router may take to look at servers that answer"""
_ELSEWHERE_S = 3600.0
_ASK_S = 10.0


class Endpoint:
    """A running endpoint; `close`, or the end of this process however it ends, ends all of it."""

    def __init__(self, logs: Path, host: str, port: int, key: str) -> None:
        """Nothing is started yet. `key`: what requests must carry; empty: the key of this home."""
        self.url = f"http://{reachable(host)}:{port}"
        self.logs, self._host, self._port, self._key = logs, host, port, key
        self._parents: list[ChildProcesses] = []
        self._parts: list[Server | Router] = []
        self._gateway: Gateway | None = None

    @property
    def server_urls(self) -> list[str]:
        """Return the addresses of the SGLang servers of this host, in the models' order."""
        return [part.url for part in self._parts if isinstance(part, Server)]

    def start_here(self, models: Sequence[ServedModel]) -> None:
        """All of it on this host. Raises InputError where it has too few GPUs, and EngineError."""
        self.start(models, place_here({m.name: m.fleet for m in models}), LOOPBACK, True)

    def start(
        self,
        models: Sequence[ServedModel],
        servers: Sequence[PlacedServer],
        here: str,
        has_routers: bool,
    ) -> None:
        """Return when every model answers, or, on a host without the routers, its own servers.
        `here`: this host's address. Raises EngineError with the end of a log.
        """
        engines = self._children(_LAUNCHER)
        by_name = {model.name: model for model in models}
        nodes = [
            self._node(engines, by_name[server.fleet], server, rank)
            for server in servers
            for rank, node in enumerate(server.nodes)
            if node.host.address == here
        ]
        answering = [node for rank, node in nodes if rank == 0]
        elsewhere = [s.url for s in servers if s.address != here] if has_routers else []
        with ThreadPoolExecutor(len(nodes) + len(elsewhere) or 1) as pool:
            waits = [pool.submit(node.wait_ready) for node in answering]
            waits += [pool.submit(self._wait_for, url) for url in elsewhere]
            for wait in waits:
                wait.result()
        if has_routers:
            self._route(models, servers)

    def _node(
        self, engines: ChildProcesses, model: ServedModel, server: PlacedServer, rank: int
    ) -> tuple[int, Server]:
        """Return a server's process on this host; only that of rank 0 answers requests."""
        node = server.nodes[rank]
        name = _file_name(server.name) + (f"-node-{rank}" if rank else "")
        device = node.first_device if has_cuda() else 0
        tp = model.fleet.tp_per_server
        spec = model.spec(server, rank)
        started = Server(engines, name, spec, model.folder, tp, server.port, device)
        self._parts.append(started)
        return rank, started

    def _route(self, models: Sequence[ServedModel], servers: Sequence[PlacedServer]) -> None:
        programs = self._children("")
        routers = {
            model.name: self._router(
                programs, model, [s for s in servers if s.fleet == model.name], len(models)
            )
            for model in models
        }
        for model in models:
            router, own = routers[model.name], [s for s in servers if s.fleet == model.name]
            router.wait_ready()
            router.set_servers([server.url for server in own], _ROUTES_S)
        if len(models) > 1:
            addresses = {name: router.url for name, router in routers.items()}
            self._gateway = Gateway(self._host, self._port, self._key or required_key(), addresses)

    def _router(
        self,
        programs: ChildProcesses,
        model: ServedModel,
        servers: Sequence[PlacedServer],
        count: int,
    ) -> Router:
        name = f"router-{_file_name(model.name)}"
        flags = {**_ROUTER, **router_form(model.fleet, servers)}
        if count > 1:
            router = Router(programs, name, LOOPBACK, flags=flags)
        else:
            if self._key:
                note_key(self.url, self._key)
            router = Router(programs, name, self._host, port=self._port, flags=flags, key=self._key)
        self._parts.append(router)
        return router

    def _wait_for(self, url: str) -> None:
        """Wait for a server that another host starts."""
        deadline = time.monotonic() + _ELSEWHERE_S
        while True:
            try:
                call(url, "/model_info", timeout=_ASK_S)
                return
            except EngineError as error:
                if time.monotonic() > deadline:
                    raise EngineError(
                        f"the server at {url}, which another host starts, did not answer in"
                        f" {_ELSEWHERE_S:.0f} s: run `tributary fleet up` there, with --on and its"
                        " address"
                    ) from error
            time.sleep(_LOOK_S)

    def watch(self) -> None:
        """Return never; raises EngineError when a part of it has ended by itself."""
        while True:
            for part in self._parts:
                if not part.is_alive:
                    raise EngineError(
                        f"{part.name} ended while serving; the end of {part.log}:\n"
                        f"{log_tail(part.log)}\nStart again; a server that ran out of memory needs"
                        " fewer tokens at once: --sglang max_total_tokens=N"
                    )
            time.sleep(_LOOK_S)

    def close(self) -> None:
        """End every process of it; doing it twice is harmless."""
        with ExitStack() as stack:  # what cannot be ended keeps nothing else from ending
            for parent in self._parents:
                stack.callback(parent.close)
            if self._key:
                stack.callback(forget_key, self.url)
            if self._gateway is not None:
                stack.callback(self._gateway.close)
        self._parents.clear()

    def _children(self, preloaded: str) -> ChildProcesses:
        self._parents.append(ChildProcesses(self.logs, preloaded))
        return self._parents[-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _file_name(model: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in model)
