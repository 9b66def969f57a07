"""The messages of a row in OpenAI's layout and in ShareGPT's."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Literal, NamedTuple, TypeGuard, cast

from curricula.rows.conversation import Layout
from curricula.rows.fields import Fields, is_empty, without_filled_nulls
from curricula.rows.meaning import LEARNED, SEEN, Meaning, refuse_cut, refuse_failed, refuse_meaning
from curricula.rows.texts import (
    are_tokens,
    is_blank,
    is_written_list,
    is_written_parts,
    kind_of,
    parsed,
    text_of,
    thought_in,
)
from curricula.rows.tools import THOUGHTS, Call, calls_of, refuse_other_thoughts
from engines.types import Message, Tool
from infra.data_files.rows import BadRow, Reason
from infra.json_text import json_fault

Role = Literal["system", "user", "assistant", "tool"]
_OPENAI: Mapping[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_SHAREGPT: Mapping[str, Role] = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "function_call": "assistant",
    "tool_call": "assistant",
    "observation": "tool",
    "tool": "tool",
}
_CALLS = ("function_call", "tool_call")
_PYTHONS_LIST = re.compile(r"\s*\[\s*\{\s*'")
_TEXTS = ("content", "value", "text")
_MARKS = (
    "weight", "train", "training", "trainable", "loss", "loss_scale", "loss_weight", "loss_mask",
    "step_loss_mask",
)  # fmt: skip
"""what says whether a message of the assistant is learned: 1 or true, 0 or false"""
_OF_ANY_ROLE = ("train", "training", "trainable")
"""marks that other frameworks obey in every role"""
_CALLED = ("function_call", "function_calls", "tool_results")
"""calls and results in forms that nothing here reads"""
_MEANT = (*SEEN, *LEARNED, Meaning.CONTEXT)
TOKENS = "holds ids of tokens, which are not read; give the text that they were made of"
_CHANNELS = {"channel": ("final",), "recipient": ("all", "user", "assistant")}
"""fields that say to whom a message speaks, and values with which it is an answer"""


class Turn(NamedTuple):
    """One message, and what its row says beside it."""

    message: Message
    is_untrained: bool = False
    calls: tuple[Call, ...] = ()
    answers: str = ""
    """the id of the call whose result it is"""
    name: str = ""
    """of the tool whose result it is"""


class Reading(NamedTuple):
    """How the messages of a row are read, as the whole row says it."""

    layout: Layout
    tools: Sequence[Tool]
    unread: set[str]
    """where keys go that nobody asks for"""
    is_learned: bool = False  # whether each answer that counts is to be learned


def read_turns(value: Any, name: str, reading: Reading) -> list[Turn]:
    """The messages of a column in whatever order they are, but the results of tools in the order of
    their calls. Raises BadRow."""
    return read_talk(value, name, reading)[0]


def read_talk(value: Any, name: str, reading: Reading) -> tuple[list[Turn], bool]:
    """The messages of a column, as `read_turns` does it, and whether they have ShareGPT's layout.
    Raises BadRow."""
    messages = _objects(value, name, reading.tools)
    is_sharegpt = _are_sharegpt(messages, name, reading.layout)
    path = f"{name}[]."
    turns = [
        _plain_turn(message, is_sharegpt)
        or _turn(Fields(message, reading.unread, path), f"{name}[{at}]", is_sharegpt, reading)
        for at, message in enumerate(messages)
    ]
    return _results_in_order(turns, name), is_sharegpt


def _are_sharegpt(messages: list[dict[str, Any]], name: str, layout: Layout) -> bool:
    if layout != "auto":
        return layout == "sharegpt"
    first = messages[0]
    is_talk = name.startswith("conversation") and "value" in first and "content" not in first
    return "from" in first or is_talk


def _objects(value: Any, name: str, tools: Sequence[Tool]) -> list[dict[str, Any]]:
    value = _read_text(value, name) if isinstance(value, str) else value
    value = without_filled_nulls(value, tools)
    if isinstance(value, dict):
        value = _transposed(cast("dict[str, Any]", value))
    if not isinstance(value, list) or not value:
        pandas = "; it holds a value for each row: write the table with `to_json(orient='records')`"
        more = pandas if _is_by_row(value) else ""
        raise BadRow(Reason.COLUMNS, f"{name}: is no list of messages{more}")
    if are_tokens(value):
        raise BadRow(Reason.COLUMNS, f"{name}: {TOKENS}")
    for at, message in enumerate(cast("list[Any]", value)):
        if not isinstance(message, dict):
            more = f"; one text of a list is named `{name}.{at}`" if type(message) is str else ""
            said = f"{name}[{at}]: is no object but {kind_of(message)}{more}"
            raise BadRow(Reason.MESSAGES, said)
    return cast("list[dict[str, Any]]", value)


def _read_text(text: str, name: str) -> Any:
    """Return a list of messages that is JSON text."""
    if _PYTHONS_LIST.match(text):
        raise BadRow(
            Reason.COLUMNS,
            f"{name}: holds a list as Python prints it, which is no JSON; write the column with"
            " json.dumps",
        )
    if not text.lstrip().startswith(("[", "{")):
        raise BadRow(Reason.COLUMNS, f"{name}: is no list of messages but a text")
    return parsed(text, name, Reason.COLUMNS)


def is_text(value: Any) -> TypeGuard[str]:
    """Return whether it is a text, and no list of messages that a table holds as text."""
    return isinstance(value, str) and not is_written_list(value)


def _transposed(value: dict[str, Any]) -> Any:
    """`datasets` writes a sequence of objects as an object of lists."""
    columns = {n: cast("list[Any]", v) for n, v in value.items() if isinstance(v, list)}
    if (
        _is_by_row(value)
        or len({len(each) for each in columns.values()}) != 1
        or len(columns) < len(value)
    ):
        return value
    return [dict(zip(columns, each, strict=True)) for each in zip(*columns.values(), strict=True)]


def _is_by_row(value: Any) -> bool:
    """Return whether its keys are the numbers of rows, as pandas writes a column."""
    return (
        bool(value)
        and isinstance(value, dict)
        and all(map(str.isdecimal, cast("dict[str, Any]", value)))
    )


def _plain_turn(message: dict[str, Any], is_sharegpt: bool) -> Turn | None:
    """Return a message that is a role and a text, as nearly all are; None for any other, which
    `_turn` reads, or refuses, at ten times the cost."""
    said_by, key = ("from", "value") if is_sharegpt else ("role", "content")
    if len(message) != 2 or said_by not in message or key not in message:
        return None
    who, text = message[said_by], message[key]
    if type(who) is not str or type(text) is not str or who in _CALLS:
        return None
    role = (_SHAREGPT if is_sharegpt else _OPENAI).get(who)
    if role is None or is_blank(text) or json_fault(text) or is_written_parts(text):
        return None
    return Turn(Message(role, text))


def _turn(message: Fields, where: str, is_sharegpt: bool, reading: Reading) -> Turn:
    """Return a message as its row says it. Raises BadRow."""
    said_by = _said_by(message, is_sharegpt)
    wanted, layout = ("from", "ShareGPT") if is_sharegpt else ("role", "OpenAI")
    if said_by is None and not message.holds(wanted):
        has = (
            f"it has {', '.join(message.names)}; by the first message or `format` this is {layout}"
        )
        raise BadRow(Reason.MESSAGES, f"{where}: has no `{wanted}`; {has}")
    role = _role(said_by, _SHAREGPT if is_sharegpt else _OPENAI, where)
    _refuse_other_role(message, role, "role" if is_sharegpt else "from", where)
    message.refuse(_CALLED, where, Reason.MESSAGES, "; calls are read from `tool_calls`")
    message.refuse(["refusal"], where, Reason.MESSAGES)
    key = "value" if is_sharegpt else "content"
    text, calls, thought = "", (), None
    if is_sharegpt and _plain(said_by) in _CALLS:
        calls = calls_of(message.get(key), where, reading.unread)
        if not calls:
            raise BadRow(Reason.TOOLS, f"{where}: holds no call")
    else:
        said, thought = _thought_in_parts(message.get(key), role, where)
        text = text_of(said, where)
        if role != "tool" and is_written_parts(text):
            said = f"{where}: its `{key}` is a list of parts as JSON text; write it as a list"
            raise BadRow(Reason.MESSAGES, said)
    more = message.get("tool_calls")
    if not is_empty(more):
        if role != "assistant":
            raise BadRow(Reason.MESSAGES, f"{where}: has tool calls, but the role is {role}")
        calls = (*calls, *calls_of(more, where, reading.unread))
    thought = _thought(message, role, where) or thought
    _check_says_something(message, where, key, role, not is_blank(text), bool(calls or thought))
    is_untrained = _is_untrained(message, role, where)
    answers, name = "", ""
    if role == "tool":
        answers = str(message.get("tool_call_id") or message.get("call_id") or "")
        name = str(message.get("name") or "")
    if role == "assistant":
        _refuse_other_channels(message, where)
        refuse_other_thoughts(message, where, Reason.MESSAGES, "leave it out")
    if message.left:
        refuse_meaning(message, _MEANT, where, Reason.MESSAGES)
        if role == "assistant" and not is_untrained:
            refuse_cut(message, where, Reason.MESSAGES)
            if reading.is_learned:
                refuse_failed(message, where, Reason.MESSAGES)
    message.close()
    made = Message(role, text, thought, tuple(each.call for each in calls))
    return Turn(made, is_untrained, calls, answers, name)


def _refuse_other_channels(message: Fields, where: str) -> None:
    """Raises BadRow for a message of the assistant that is no answer to the user but a thought or
    a call (harmony)."""
    for name, allowed in _CHANNELS.items():
        said = message.get(name) if message.has(name) else None
        if said is not None and said not in allowed:
            raise BadRow(
                Reason.MESSAGES,
                f"{where}: {name} is {said!r:.40}, which is not read; write thoughts into"
                " `reasoning_content` of the answer, and calls into `tool_calls`",
            )


def _said_by(message: Fields, is_sharegpt: bool) -> Any:
    if not is_sharegpt:
        return message.get("role")
    said_by = message.get("from")
    if said_by is None and message.has("value"):
        return message.get("role")
    return said_by


def _refuse_other_role(message: Fields, role: Role, other: str, where: str) -> None:
    """Raises BadRow for a message that two of its fields give to two speakers."""
    said_by = _plain(message.values[other]) if message.has(other) else ""
    found = _SHAREGPT.get(said_by) or _OPENAI.get(said_by)
    if found not in (None, role):
        raise BadRow(
            Reason.MESSAGES, f"{where}: its `{other}` is {said_by}, but it is of role {role}"
        )


def _plain(said_by: Any) -> str:
    return str(said_by).strip().lower()


def _role(value: Any, roles: Mapping[str, Role], where: str) -> Role:
    if not isinstance(value, str) or _plain(value) not in roles:
        allowed, more = ", ".join(roles), ""
        if any(word in _plain(value) for word in ("tool", "function")):
            more = "; calls are read from `tool_calls` of the assistant, results from role tool"
        raise BadRow(
            Reason.MESSAGES, f"{where}: the role is {value!r:.40}; allowed: {allowed}{more}"
        )
    return roles[_plain(value)]


def _thought_in_parts(content: Any, role: Role, where: str) -> tuple[Any, str | None]:
    """Content without its parts of type `thinking`, and what these say."""
    if role != "assistant" or not isinstance(content, list):
        return content, None
    parts = cast("list[Any]", content)
    thoughts = [p for p in parts if isinstance(p, dict) and p.get("type") == "thinking"]
    rest = [part for part in parts if not any(part is each for each in thoughts)]
    said = [thought_in(cast("dict[str, Any]", each), where) for each in thoughts]
    return rest, "".join(said) or None


def _thought(message: Fields, role: Role, where: str) -> str | None:
    there = message.among(THOUGHTS)
    given = [(name, text_of(message.get(name), f"{where}.{name}")) for name in there]
    given = [(name, text) for name, text in given if not is_blank(text)]
    if not given:
        return None
    if role != "assistant":
        raise BadRow(Reason.MESSAGES, f"{where}: has `{given[0][0]}`, but the role is {role}")
    for name, text in given[1:]:
        if text != given[0][1]:
            raise BadRow(
                Reason.MESSAGES, f"{where}: has `{given[0][0]}` and `{name}`, which differ"
            )
    return given[0][1]


def _check_says_something(
    message: Fields, where: str, key: str, role: Role, has_text: bool, does_more: bool
) -> None:
    """Raises BadRow for a message without the text that it must have, and for one with two."""
    for other in message.among(_TEXTS):
        if not message.has(key):
            raise _without_text(message, where, key)
        if message.get(other) != message.values[key]:
            raise BadRow(Reason.MESSAGES, f"{where}: has `{other}` beside its `{key}`")
    if has_text or does_more:
        return
    if key not in message.values:
        raise _without_text(message, where, key)
    if role == "assistant":
        raise BadRow(
            Reason.MESSAGES, f"{where}: the assistant says nothing: no text, thought or tool call"
        )
    if role == "user" or message.values[key] is None:
        raise BadRow(Reason.MESSAGES, f"{where}: its `{key}` is empty")


def _without_text(message: Fields, where: str, key: str) -> BadRow:
    return BadRow(Reason.MESSAGES, f"{where}: has no `{key}`; it has {', '.join(message.values)}")


def _is_untrained(message: Fields, role: Role, where: str) -> bool:
    """Return whether a message is marked as only read. Raises BadRow for marks that say both, or
    that say something else."""
    if message.values.keys().isdisjoint(_MARKS):
        return False
    marks = {name: message.get(name) for name in _MARKS if message.values.get(name) is not None}
    if not marks:
        return False
    for name, value in marks.items():
        if not isinstance(value, bool | int | float) or value not in (0, 1):
            shown = f"{value!r:.40}" if isinstance(value, str | int | float) else kind_of(value)
            raise BadRow(Reason.MESSAGES, f"{where}: {name} is {shown}; allowed: 0 and 1")
        if role != "assistant" and value and name in _OF_ANY_ROLE:
            raise BadRow(
                Reason.MESSAGES,
                f"{where}: {name} is {value!r}, but only what the assistant says is trained on",
            )
    if len({bool(value) for value in marks.values()}) > 1:
        raise BadRow(Reason.MESSAGES, f"{where}: {' and '.join(marks)} differ")
    return not any(marks.values())


def _results_in_order(turns: list[Turn], name: str) -> list[Turn]:
    """Results of tools in the order of their calls. Raises BadRow for one that nobody called."""
    if not any(turn.message.role == "tool" for turn in turns):
        return turns
    ordered: list[Turn] = []
    for are_results, group in groupby(turns, key=lambda turn: turn.message.role == "tool"):
        if are_results:
            calls = ordered[-1].calls if ordered else ()
            ordered += _sorted(list(group), calls, f"{name}[{len(ordered)}]")
        else:
            ordered += group
    return ordered


def _sorted(results: list[Turn], calls: Sequence[Call], where: str) -> list[Turn]:
    ids, names = [each.id for each in calls], [each.call.name for each in calls]
    if any(ids) and any(each.answers for each in results):
        return _by_place([each.answers for each in results], ids, results, where)
    if calls and all(each.name for each in results):
        if wrong := next((r.name for r in results if r.name not in names), ""):
            made = ", ".join(names)
            raise BadRow(Reason.MESSAGES, f"{where}: is of {wrong}, but what was called is {made}")
        if len(set(names)) == len(names) and len({r.name for r in results}) == len(results):
            return _by_place([each.name for each in results], names, results, where)
    return results


def _by_place(keys: list[str], places: list[str], results: list[Turn], where: str) -> list[Turn]:
    if "" in keys:
        raise BadRow(Reason.MESSAGES, f"{where}: some results name their call, others do not")
    if wrong := next((key for key in keys if key not in places), ""):
        made = ", ".join(map(repr, places))
        raise BadRow(
            Reason.MESSAGES, f"{where}: answers the call {wrong!r}; the calls before it are {made}"
        )
    if len(set(keys)) < len(keys):
        raise BadRow(Reason.MESSAGES, f"{where}: one call has two results")
    paired = sorted(zip(keys, results, strict=True), key=lambda pair: places.index(pair[0]))
    return [result for _, result in paired]
