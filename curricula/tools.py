"""The agent's tools: what they promise, the protocol of calling them, and what they do."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from curricula.worlds import World, search
from engines.types import Json, ProtocolBreak, Tool, ToolCall
from infra.sandbox.python import Demand, Limits, SandboxResult, run_python

SEARCH = Tool("search", "Facts about the entity that fits best.", {"q": "string"}, ("q",))
PYTHON = Tool("python", "What a Python program prints.", {"code": "string"}, ("code",))
PYTHON_LIMITS = Limits(seconds=5.0, cpu_seconds=2, output=512)
CONCURRENT_PROGRAMS = 4
_PROGRAMS = threading.BoundedSemaphore(CONCURRENT_PROGRAMS)

_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "any": (object,),
}


def check_call(call: ToolCall, tools: Sequence[Tool]) -> None:
    """Raises `ProtocolBreak` unless the tool is offered and takes just these arguments."""
    tool = next((tool for tool in tools if tool.name == call.name), None)
    if tool is None:
        raise ProtocolBreak(f"called {call.name!r}, which is not offered")
    for name in tool.required:
        if name not in call.arguments:
            raise ProtocolBreak(f"called {call.name!r} without {name!r}")
    for name, value in call.arguments.items():
        if name not in tool.parameters:
            raise ProtocolBreak(f"called {call.name!r} with unknown argument {name!r}")
        if not _is_a(value, tool.parameters[name]):
            raise ProtocolBreak(
                f"argument {name!r} of {call.name!r} is not of type {tool.parameters[name]}"
            )


def execute(call: ToolCall, world: World, sandbox: Demand) -> str:
    """What the tool answers to a checked call. Blocks while a program runs."""
    if call.name == SEARCH.name:
        return search(world, str(call.arguments["q"]))
    with _PROGRAMS:
        result = run_python(str(call.arguments["code"]), PYTHON_LIMITS, demand=sandbox)
    return _report(result)


def _report(result: SandboxResult) -> str:
    """What the program printed; for a failed one, the last line of its error."""
    if result.status == "ok":
        return result.stdout.strip()
    if result.status == "timeout":
        return "error: out of time"
    lines = result.stderr.strip().splitlines()
    return f"error: {lines[-1] if lines else f'exit code {result.exit_code}'}"


def _is_a(value: Json, kind: str) -> bool:
    if isinstance(value, bool) and kind not in ("boolean", "any"):
        return False
    return isinstance(value, _TYPES[kind])
