"""Tools of a row, and calls of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from curricula.rows.fields import Fields, is_empty
from curricula.rows.texts import kind_of, parsed, parsed_object
from engines.types import Tool, ToolCall
from infra.data_files.tally import BadRow, Reason
from infra.json_text import schema_fault, schema_without_nulls

_SCHEMAS = ("parameters", "input_schema")
_ARGUMENTS = ("parameters", "input", "args", "kwargs", "params")
"""other names for what is called with, of which none is read"""


class Call(NamedTuple):
    """One call, and what its result names it by."""

    call: ToolCall
    id: str


def tools_of(value: Any) -> tuple[Tool, ...]:
    """A list of functions in OpenAI's form or in Anthropic's, or the same as JSON text. Raises
    BadRow."""
    written = isinstance(value, str)
    value = parsed(value, "tools", Reason.TOOLS)
    value = value if written else schema_without_nulls(value)
    if value is None:
        return ()
    if not isinstance(value, list):
        raise BadRow(Reason.TOOLS, f"tools: is no list but {kind_of(value)}")
    tools = tuple(_tool(each, f"tools[{at}]") for at, each in enumerate(cast("list[Any]", value)))
    known: dict[str, Tool] = {}
    for tool in tools:
        if known.setdefault(tool.name, tool) != tool:
            raise BadRow(Reason.TOOLS, f"tools: two have the name {tool.name}, and differ")
    return tools


def _tool(value: Any, where: str) -> Tool:
    value = parsed(value, where, Reason.TOOLS)
    function = _function(value)
    if function is None:
        raise BadRow(Reason.TOOLS, f"{where}: is no function with a name")
    kind = cast("dict[str, Any]", value).get("type")
    if kind not in (None, "function") and function.keys().isdisjoint(_SCHEMAS):
        raise BadRow(
            Reason.TOOLS,
            f"{where}: is of type {kind!r:.40}; what is read is a function with `parameters`",
        )
    for name in _SCHEMAS:
        if isinstance(function.get(name), str):
            function = function | {name: parsed(function[name], where, Reason.TOOLS)}
        if function.get(name) is not None and not isinstance(function[name], dict):
            what = kind_of(function[name])
            raise BadRow(Reason.TOOLS, f"{where}: its {name} are no object but {what}")
    if "parameters" not in function and "input_schema" in function:
        function = {**function, "parameters": function["input_schema"]}
        del function["input_schema"]
    if fault := schema_fault(function):
        raise BadRow(Reason.TOOLS, f"{where}: {function['name']}: {fault}")
    return Tool.of_function(function)


def _function(value: Any) -> dict[str, Any] | None:
    """The function of a tool or a call, under `function` or the object itself; None for one without
    a name."""
    if not isinstance(value, dict):
        return None
    given = cast("dict[str, Any]", value)
    function = given["function"] if not is_empty(given.get("function")) else given
    if not isinstance(function, dict):
        return None
    function = cast("dict[str, Any]", function)
    name = function.get("name")
    return function if isinstance(name, str) and name else None


def calls_of(value: Any, where: str, unread: set[str]) -> tuple[Call, ...]:
    """Calls as `{function: {name, arguments}}` or `{name, arguments}`. Raises BadRow."""
    value = parsed(value, where, Reason.TOOLS)
    calls: list[Any] = [] if value is None else value if isinstance(value, list) else [value]
    return tuple(_call(call, where, unread) for call in calls if call is not None)


def are_calls(value: Any, tools: Sequence[Tool]) -> bool:
    """Whether it is nothing but calls of such tools, in a list or as JSON text (xLAM)."""
    items = parsed_object(value) if tools else None
    if not isinstance(items, list) or not items:
        return False
    calls = [_function(each) for each in cast("list[Any]", items)]
    return all(call is not None and "arguments" in call for call in calls)


def _call(value: Any, where: str, unread: set[str]) -> Call:
    value = parsed(value, where, Reason.TOOLS)
    function = _function(value)
    if function is None:
        raise BadRow(Reason.TOOLS, f"{where}: a tool call lacks its name")
    read, outer = Fields(function, unread, "tool_calls[]."), cast("dict[str, Any]", value)
    name, said = str(read.get("name")), read.get("arguments")
    if is_empty(said) and (other := read.first(_ARGUMENTS)):
        raise BadRow(Reason.TOOLS, f"{where}: {name} has no `arguments`; it has {other}")
    arguments: Any = {} if said is None else parsed(said, where, Reason.TOOLS)
    if arguments is None:  # an empty text
        arguments = {}
    if not isinstance(arguments, dict):
        twice = isinstance(said, str) and isinstance(arguments, str)
        what = "a text in a text: they were encoded twice" if twice else kind_of(arguments)
        raise BadRow(Reason.TOOLS, f"{where}: arguments of {name} are no JSON object but {what}")
    if function is not outer:
        around = Fields(outer, unread, "tool_calls[].")
        around.get("function")
        its_id = _id(around)
        around.close()
    else:
        its_id = _id(read)
    read.close()
    return Call(ToolCall(name, cast("dict[str, Any]", arguments)), its_id)


def _id(call: Fields) -> str:
    its_id = call.get("id")
    call.get("type")
    return "" if its_id is None else str(its_id)
