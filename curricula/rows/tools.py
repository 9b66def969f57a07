"""Tools of a row, calls of them, and the names under which rows hold what the assistant thinks
before it answers, or that it does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from curricula.rows.fields import Fields, is_empty
from curricula.rows.meaning import Meaning, carries
from curricula.rows.texts import kind_of, parsed, parsed_object
from engines.types import Message, Tool, ToolCall
from infra.data_files.rows import BadRow, Reason
from infra.json_text import schema_fault, schema_without_nulls

_SCHEMAS = ("parameters", "input_schema")
_ARGUMENTS = ("parameters", "input", "args", "kwargs", "params")
"""other names for what is called with, of which none is read"""
THOUGHTS = ("reasoning_content", "reasoning", "thinking", "thought", "thoughts")
"""names that are read"""
_SWITCHES = ("enable_thinking", "thinking_enabled", "use_thinking", "think")
"""beside these, names of what turns thinking on where it is true"""
_LIKE_A_THOUGHT = re.compile(
    r"reasoning|think|thought|rationale|scratchpad|monologue|^analysis($|_)|(^|_)cot($|_)|tool_plan"
    r"|derivation",
    re.IGNORECASE,
)
_ABOUT_A_THOUGHT = re.compile(
    r"token|effort|budget|time|duration|second|length|count|enable|mode|level|type|format|signature"
    r"|model|score|_id$|_ms$|^is_|^has_",
    re.IGNORECASE,
)


class Call(NamedTuple):
    """One call, and what its result names it by."""

    call: ToolCall
    id: str


def tools_of(value: Any) -> tuple[Tool, ...]:
    """Return a list of functions in OpenAI's form or in Anthropic's, or the same as JSON text.
    Raises BadRow."""
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
    """Return whether it is nothing but calls of such tools, in a list or as JSON text (xLAM)."""
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


def refuse_other_thoughts(row: Fields, where: str, reason: Reason, out: str) -> None:
    """Raises BadRow for a text, list or object under a name like one of a thought that was not
    read: the answer would be learned without it. `out`: what else can be done about it."""
    for name in filter(is_like_a_thought, sorted(row.left)):
        if isinstance(row.values.get(name), str | list | dict):
            at = f"{where}: " if where else ""
            raise BadRow(
                reason,
                f"{at}has `{name}`, which is not read and looks like a thought; call it"
                f" `reasoning_content`, or {out}",
            )


def is_like_a_thought(name: str) -> bool:
    return bool(_LIKE_A_THOUGHT.search(name)) and not _ABOUT_A_THOUGHT.search(name)


def read_switches(row: Fields) -> dict[str, bool]:
    """Columns that say whether a row's answers hold thoughts. Examples: `reasoning` "on",
    `chat_template_kwargs` {"enable_thinking": false}."""
    found: dict[str, bool] = {}
    for name in sorted(row.left):
        if name in THOUGHTS or carries(name, Meaning.SWITCH):
            is_on = _switch(name, row.values.get(name))
            if is_on is not None:
                found[name] = is_on
                row.get(name)
    return found


def _switch(name: str, value: Any) -> bool | None:
    """Return whether it turns thinking on; None for what says something else."""
    if isinstance(value, dict):
        held = cast("dict[str, Any]", value)
        said = {each: inner for each, inner in held.items() if not is_empty(inner)}
        name, value = next(iter(said.items())) if len(said) == 1 else ("", None)
    if name not in THOUGHTS and name not in _SWITCHES:
        return None
    if isinstance(value, str):  # also as a cell of CSV
        return {"on": True, "true": True, "off": False, "false": False}.get(value.strip().lower())
    return value if isinstance(value, bool) else None


def require_as_switched(switches: Mapping[str, bool], messages: Sequence[Message]) -> None:
    """Raises BadRow for answers that have thoughts where the row says that they have none, or the
    other way round."""
    answers = [message for message in messages if message.role == "assistant"]
    thinks = any(m.reasoning or m.content.lstrip().startswith("<think>") for m in answers)
    for name, is_on in switches.items():
        if is_on != thinks:
            raise BadRow(
                Reason.COLUMNS,
                f"has `{name}`, which turns thinking {'on' if is_on else 'off'}, and"
                f" {'a' if thinks else 'no'} thought; {Meaning.SWITCH.value.advice}: leave out the"
                " column, or the row",
            )
