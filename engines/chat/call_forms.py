"""Tool calls as models write them, parsed strictly: a call is right, or it says what is wrong.

    glm           <tool_call>name<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>
    hermes        <tool_call>{"name": "name", "arguments": {"k": "v"}}</tool_call>      (Qwen)
    qwen3_coder   <tool_call><function=name><parameter=k>v</parameter></function></tool_call>
                  (Qwen3.5 and Nemotron 3, too)
    llama3        {"name": "name", "parameters": {"k": "v"}}, also behind <|python_tag|>
    deepseekv3    a section of calls, each `function`, the name and a block of JSON     (R1, too)
    deepseekv31   a section of calls, each the name and JSON
    mistral       [TOOL_CALLS][{"name": "name", "arguments": {"k": "v"}, "id": "abcdefghi"}]
    mistral_args  [TOOL_CALLS]name[ARGS]{"k": "v"}, also with [CALL_ID]abcdefghi behind the name
    phi           <|tool_call|>{"name": "name", "arguments": {"k": "v"}}<|/tool_call|>, or a list
    harmony       <|channel|>commentary to=functions.name <|constrain|>json<|message|>{"k": "v"}
                  (gpt-oss), also with the recipient before the channel; one call a turn

The template decides: its form is the one that reads a stand-in's call back from the text that the
template makes of it. In all of them tags balance, the tool is known, no key stands twice, required
keys are there, every value has its declared type, and every text is one that UTF-8 can hold. In
`glm` and `qwen3_coder` the value of a string parameter is the raw text, others are JSON.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, cast

from engines.chat.call_arguments import PYTHON_WORDS, CallError, checked, short, unquoted
from engines.types import Json, Tool, ToolCall
from infra.json_text import DuplicateKey, json_at

Tools: TypeAlias = Mapping[str, Tool]
"""by name"""
Read: TypeAlias = tuple[list[ToolCall], str]
"""the calls with which a text begins, and what follows them"""

_BEGIN, _END = "<tool_call>", "</tool_call>"
_ARGUMENT = re.compile(
    r"\s*<arg_key>(?P<key>[^<>]*)</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>", re.DOTALL
)
_GLM_TAG = re.compile(r"</?(?:tool_call|arg_key|arg_value)>")
_FUNCTION = re.compile(r"\s*<function=(?P<name>[^<>]*)>(?P<rest>.*)</function>\s*", re.DOTALL)
_PARAMETER = re.compile(r"\s*<parameter=(?P<key>[^<>]*)>(?P<value>.*?)</parameter>", re.DOTALL)
_FUNCTION_TAG = re.compile(r"</?tool_call>|<function=|</function>|<parameter=|</parameter>")
_PYTHON_TAG = "<|python_tag|>"
_BARE = re.compile(r'\s*\{\s*"(?:name|type)"\s*:')
_CALLS, _CALLS_END = (
    "<\uff5ctool\u2581calls\u2581begin\uff5c>",
    "<\uff5ctool\u2581calls\u2581end\uff5c>",
)
_ONE, _ONE_END = "<\uff5ctool\u2581call\u2581begin\uff5c>", "<\uff5ctool\u2581call\u2581end\uff5c>"
_SEPARATOR = "<\uff5ctool\u2581sep\uff5c>"
_FENCED = re.compile(r"(?P<name>[^\n]*)\n```json\n(?P<body>.*)\n```", re.DOTALL)
_MISTRAL, _CALL_ID, _ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
_ID = re.compile(r"[A-Za-z0-9]{9}")
_SPACE = re.compile(r"\s*")
_PHI, _PHI_END = "<|tool_call|>", "<|/tool_call|>"
_TO = " to=functions."
_COMMENTARY = r"(?:<\|channel\|>commentary)?"
_HARMONY = re.compile(
    rf"{_COMMENTARY}{_TO}(?P<name>[^\s<>]*){_COMMENTARY}"
    r"(?: ?(?:<\|constrain\|>)?json)?<\|message\|>"
)


@dataclass(frozen=True, slots=True)
class CallForm:
    """Says how calls are written, and reads them."""

    name: str
    opening: str
    """with which a turn's calls begin"""
    read: Callable[[str, Tools], Read]
    """reads a text that begins with calls; raises CallError"""
    server_parser: str
    """SGLang's name of its parser of this form; empty where it has none"""
    inside: tuple[str, ...] = ()
    """marks that stand within calls alone"""

    def find(self, text: str) -> int:
        """Return where the calls of a turn begin; -1 in one without."""
        return text.find(self.opening)


class _Bare(CallForm):
    """Reads calls without marks: a turn is one, or has none."""

    def find(self, text: str) -> int:
        """Take an object that is no call, as an answer in JSON is, for text."""
        if text.lstrip().startswith(_PYTHON_TAG):
            return 0
        if not _BARE.match(text):
            return -1
        try:
            raw, _ = json_at(text, 0)
        except ValueError:
            return 0
        return 0 if isinstance(raw, dict) and "parameters" in raw else -1


class _Addressed(CallForm):
    """Reads a call whose header says to whom it goes: other messages have headers, too."""

    def find(self, text: str) -> int:
        """Return where the header begins."""
        found = _HARMONY.search(text)
        return found.start() if found else -1


def parse_calls(text: str, tools: Sequence[Tool], form: CallForm) -> list[ToolCall]:
    """Return the calls in `text`, which begins with the first. Raises CallError."""
    calls, rest = form.read(text, {tool.name: tool for tool in tools})
    if rest.strip():
        raise CallError(f"text after a tool call: {short(rest.strip())}")
    return calls


def form_of(written: str, call: ToolCall, tool: Tool) -> CallForm | None:
    """Return the form that reads this call in a turn that a template wrote for it, if one does."""
    for form in FORMS:
        at = form.find(written)
        try:
            if at >= 0 and form.read(written[at:], {tool.name: tool})[0] == [call]:
                return form
        except CallError:
            continue
    return None


def _tagged(parse: Callable[[str, Tools], ToolCall]) -> Callable[[str, Tools], Read]:
    """Return the reader of calls that stand each between tags of its own."""

    def read(text: str, known: Tools) -> Read:
        calls: list[ToolCall] = []
        at = 0  # a place, not the rest of the text: a megabyte may be thousands of calls
        while text.startswith(_BEGIN, begin := _behind_space(text, at)):
            begin += len(_BEGIN)
            end = text.find(_END, begin)
            if end < 0:
                raise CallError(f"{_BEGIN} is not closed")
            if text.find(_BEGIN, begin, end) >= 0:
                raise CallError(f"{_BEGIN} inside a tool call")
            calls.append(parse(text[begin:end], known))
            at = end + len(_END)
        return calls, text[at:]

    return read


def _glm(body: str, known: Tools) -> ToolCall:
    start = body.find("<")
    name, tags = (body, "") if start < 0 else (body[:start], body[start:])
    tool = _tool(name.strip(), known)
    return unquoted(tool, _tagged_arguments(tool, tags, _ARGUMENT, _GLM_TAG))


def _qwen3_coder(body: str, known: Tools) -> ToolCall:
    written = _FUNCTION.fullmatch(body)
    if written is None:
        raise CallError(f"function tags do not balance: {short(body)}")
    tool = _tool(written["name"].strip(), known)
    found = _tagged_arguments(tool, written["rest"], _PARAMETER, _FUNCTION_TAG)
    lines = [(key, value.removeprefix("\n").removesuffix("\n")) for key, value in found]
    return unquoted(tool, lines, PYTHON_WORDS)


def _tagged_arguments(
    tool: Tool, tags: str, argument: re.Pattern[str], any_tag: re.Pattern[str]
) -> list[tuple[str, str]]:
    """Return the arguments that stand each between tags of their own, as they are written."""
    tags, at = tags.rstrip(), 0
    found: list[tuple[str, str]] = []
    while at < len(tags):
        match = argument.match(tags, at)
        if match is None or any_tag.search(match["value"]):
            raise CallError(f"argument tags of {tool.name} do not balance: {short(tags[at:])}")
        found.append((match["key"].strip(), match["value"]))
        at = match.end()
    return found


def _hermes(body: str, known: Tools) -> ToolCall:
    return _from_object(_json(body, "a tool call"), known, "arguments")


def _from_object(raw: Json, known: Tools, key: str) -> ToolCall:
    """Return the call that an object with a name and arguments is."""
    if not isinstance(raw, dict) or not isinstance(raw.get("name"), str):
        raise CallError("a tool call lacks its name")
    return _with_arguments(_tool(raw["name"], known), raw.get(key, {}))


def _with_arguments(tool: Tool, arguments: Json) -> ToolCall:
    if not isinstance(arguments, dict):
        raise CallError(f"arguments of {tool.name} are not a JSON object")
    return checked(tool, arguments)


def _llama3(text: str, known: Tools) -> Read:
    body = text.lstrip().removeprefix(_PYTHON_TAG)
    raw, end = _value(body, 0, "a tool call")
    return [_from_object(raw, known, "parameters")], body[end:]


def _section(parse: Callable[[str, Tools], ToolCall]) -> Callable[[str, Tools], Read]:
    """Return the reader of a section of calls (DeepSeek)."""

    def read(text: str, known: Tools) -> Read:
        section, closed, after = text.removeprefix(_CALLS).partition(_CALLS_END)
        if not closed:
            raise CallError(f"{_CALLS} is not closed")
        *bodies, behind = section.split(_ONE_END)
        if behind.strip() or not bodies:
            raise CallError(f"a section of calls is no calls: {short(behind.strip())}")
        calls: list[ToolCall] = []
        for body in bodies:
            before, _, call = body.partition(_ONE)
            if before.strip() or not call or _ONE in call:
                raise CallError(f"a call does not begin with {_ONE}: {short(body)}")
            calls.append(parse(call, known))
        return calls, after

    return read


def _fenced(body: str, known: Tools) -> ToolCall:
    kind, _, rest = body.partition(_SEPARATOR)
    written = _FENCED.fullmatch(rest)
    if kind != "function" or written is None:
        raise CallError(f"a tool call is no `function`, name and block of JSON: {short(body)}")
    return _from_name_and_json(written["name"], written["body"], known)


def _unfenced(body: str, known: Tools) -> ToolCall:
    name, _, rest = body.partition(_SEPARATOR)
    return _from_name_and_json(name, rest, known)


def _from_name_and_json(name: str, body: str, known: Tools) -> ToolCall:
    """Return the call with this name and with the arguments that the body is as JSON."""
    tool = _tool(name.strip(), known)
    return _with_arguments(tool, _json(body, f"the text of {tool.name}'s arguments"))


def _mistral(text: str, known: Tools) -> Read:
    listed, end = _value(text, len(_MISTRAL), "a list of tool calls")
    if not isinstance(listed, list) or not listed:
        raise CallError(f"tool calls are no list: {short(text)}")
    calls: list[ToolCall] = []
    ids = set[str]()
    for raw in listed:
        call = _from_object(raw, known, "arguments")
        calls.append(_with_id(call, cast("dict[str, Json]", raw).get("id"), ids))
    return calls, text[end:]


def _mistral_args(text: str, known: Tools) -> Read:
    calls: list[ToolCall] = []
    ids = set[str]()
    at = 0
    while text.startswith(_MISTRAL, at):
        begin = text.find(_ARGS, at)
        if begin < 0:
            raise CallError(f"a tool call lacks {_ARGS}: {short(text[at:])}")
        name, has_id, its_id = text[at + len(_MISTRAL) : begin].partition(_CALL_ID)
        tool = _tool(name.strip(), known)
        arguments, at = _value(text, begin + len(_ARGS), f"the text of {name.strip()}'s arguments")
        call = _with_arguments(tool, arguments)
        calls.append(_with_id(call, its_id, ids) if has_id else call)
    return calls, text[at:]


def _with_id(call: ToolCall, its_id: Json, others: set[str]) -> ToolCall:
    """Return the call with its id, by which a template calls its result."""
    if not isinstance(its_id, str) or not _ID.fullmatch(its_id):
        raise CallError(f"the id of a call of {call.name} is not nine letters or digits")
    if its_id in others:
        raise CallError(f"two calls have the id {its_id}")
    others.add(its_id)
    return replace(call, id=its_id)


def _phi(text: str, known: Tools) -> Read:
    calls: list[ToolCall] = []
    at = 0
    while text.startswith(_PHI, begin := _behind_space(text, at)):
        raw, end = _value(text, begin + len(_PHI), "a tool call")
        end = _behind_space(text, end)
        if not text.startswith(_PHI_END, end):
            raise CallError(f"{_PHI} is not closed")
        listed = raw if isinstance(raw, list) else [raw]
        if not listed:
            raise CallError(f"a list of tool calls is empty: {short(text[begin:])}")
        calls += [_from_object(each, known, "arguments") for each in listed]
        at = end + len(_PHI_END)
    return calls, text[at:]


def _harmony(text: str, known: Tools) -> Read:
    header = _HARMONY.match(text)
    if header is None:
        raise CallError(f"a tool call does not begin with its header: {short(text)}")
    tool = _tool(header["name"], known)
    arguments, end = _value(text, header.end(), f"the text of {tool.name}'s arguments")
    return [_with_arguments(tool, arguments)], text[end:]


def _behind_space(text: str, at: int) -> int:
    return cast("re.Match[str]", _SPACE.match(text, at)).end()


def _json(text: str, what: str) -> Json:
    value, end = _value(text, 0, what)
    if text[end:].strip():
        raise CallError(f"{what} is not JSON: {short(text)}")
    return value


def _value(text: str, begin: int, what: str) -> tuple[Json, int]:
    """Return the JSON value that begins there, and where it ends."""
    try:
        return json_at(text, begin)
    except DuplicateKey as error:
        raise CallError(f"{what}: {error}") from error
    except ValueError as error:
        raise CallError(f"{what} is not JSON: {short(text[begin:])}") from error


GLM = CallForm(
    "glm", _BEGIN, _tagged(_glm), "glm45",
    (_END, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
)  # fmt: skip
QWEN3_CODER = CallForm(
    "qwen3_coder", _BEGIN, _tagged(_qwen3_coder), "qwen3_coder",
    (_END, "<function=", "</function>", "<parameter=", "</parameter>"),
)  # fmt: skip
HERMES = CallForm("hermes", _BEGIN, _tagged(_hermes), "hermes", (_END,))
LLAMA3 = _Bare("llama3", '{"name"', _llama3, "llama3", (_PYTHON_TAG,))
_IN_SECTION = (_CALLS_END, _ONE, _ONE_END, _SEPARATOR)
DEEPSEEK_V3 = CallForm("deepseekv3", _CALLS, _section(_fenced), "deepseekv3", _IN_SECTION)
DEEPSEEK_V31 = CallForm("deepseekv31", _CALLS, _section(_unfenced), "deepseekv31", _IN_SECTION)
MISTRAL = CallForm("mistral", _MISTRAL, _mistral, "mistral", (_ARGS,))
MISTRAL_ARGS = CallForm("mistral_args", _MISTRAL, _mistral_args, "mistral", (_ARGS,))
PHI = CallForm("phi", _PHI, _phi, "", (_PHI_END,))
HARMONY = _Addressed("harmony", _TO, _harmony, "gpt-oss")
FORMS = (
    GLM, QWEN3_CODER, HERMES, DEEPSEEK_V3, DEEPSEEK_V31, MISTRAL, MISTRAL_ARGS, PHI, HARMONY,
    LLAMA3,
)  # fmt: skip


def _tool(name: str, known: Tools) -> Tool:
    if name not in known:
        raise CallError(f"unknown tool {short(name)}; known: {', '.join(known) or 'none'}")
    return known[name]
