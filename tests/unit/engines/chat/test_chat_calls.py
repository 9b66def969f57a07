"""Tool calls: well formed ones are read exactly, every fault has its reason."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.chat.call_arguments import CallError
from engines.chat.call_forms import GLM, HERMES, QWEN3_CODER, CallForm, parse_calls
from engines.types import Json, Tool, ToolCall

pytestmark = pytest.mark.unit

TOOLS = (
    Tool("search", "", {"q": "string", "n": "integer"}, ("q",)),
    Tool(
        "set",
        "",
        {"x": "number", "on": "boolean", "items": "array", "more": "object"},
    ),
)


def glm(name: str, *pairs: tuple[str, str]) -> str:
    inner = "".join(f"<arg_key>{k}</arg_key><arg_value>{v}</arg_value>" for k, v in pairs)
    return f"<tool_call>{name}{inner}</tool_call>"


def test_values_get_the_type_that_the_tool_declares():
    text = glm("set", ("x", "1.5"), ("on", "true"), ("items", "[1, 2]"), ("more", '{"a": 1}'))
    (call,) = parse_calls(text, TOOLS, GLM)
    assert call.arguments == {"x": 1.5, "on": True, "items": [1, 2], "more": {"a": 1}}


def test_a_string_is_taken_as_it_is():
    (call,) = parse_calls(glm("search", ("q", ' "1" < 2\n')), TOOLS, GLM)
    assert call == ToolCall("search", {"q": ' "1" < 2\n'})


def test_line_feeds_between_tags_are_allowed_as_the_large_models_write_them():
    text = (
        "<tool_call>search\n<arg_key>q</arg_key>\n<arg_value>a</arg_value>\n</tool_call>\n"
        "<tool_call>set</tool_call>"
    )
    assert [c.name for c in parse_calls(text, TOOLS, GLM)] == ["search", "set"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("<tool_call>search", "is not closed"),
        ("<tool_call>search<tool_call></tool_call>", "inside a tool call"),
        (glm("search", ("q", "a")) + "and more", "text after a tool call"),
        (glm("serch", ("q", "a")), "unknown tool 'serch'; known: search, set"),
        (glm("", ("q", "a")), "unknown tool ''"),
        (glm("search", ("q", "a"), ("q", "b")), "q of search is given twice"),
        (glm("search", ("n", "3")), "search lacks the argument q"),
        (glm("search", ("q", "a"), ("n", "three")), "n of search is not a JSON integer"),
        (glm("search", ("q", "a"), ("n", "3.5")), "n of search is not a JSON integer"),
        (glm("search", ("q", "a"), ("n", "true")), "n of search is not a JSON integer"),
        (glm("set", ("x", "NaN")), "x of set is not a JSON number: 'NaN'"),
        (glm("search", ("k", "a")), "search has no parameter 'k'"),
        ("<tool_call>search<arg_key>q</arg_key></tool_call>", "do not balance"),
        ("<tool_call>search<arg_value>q</arg_value></tool_call>", "do not balance"),
        ("<tool_call>search<arg_key>q</arg_key><arg_value>a</tool_call>", "do not balance"),
        (glm("search", ("q", "a<arg_key>b")), "do not balance"),
        (glm("search", ("q", "a")).replace("</arg_value>", "</arg_value>x"), "do not balance"),
    ],
)
def test_a_fault_is_named(text: str, reason: str):
    with pytest.raises(CallError, match=reason):
        parse_calls(text, TOOLS, GLM)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ('{"name": "search", "arguments": {"q": "a"', "not JSON"),
        ('{"arguments": {"q": "a"}}', "lacks its name"),
        ('{"name": "search", "arguments": {"q": "a", "q": "b"}}', "'q' stands twice"),
        ('{"name": "search", "arguments": {"q": 1}}', "q of search is not a JSON string"),
        ('{"name": "search", "arguments": [1]}', "not a JSON object"),
        ('{"name": "search", "arguments": {"n": NaN}}', "a tool call is not JSON"),
    ],
)
def test_a_fault_in_the_hermes_form_is_named(body: str, reason: str):
    with pytest.raises(CallError, match=reason):
        parse_calls(f"<tool_call>\n{body}\n</tool_call>", TOOLS, HERMES)


@pytest.mark.parametrize(
    ("text", "value"), [("3", 3), ("[1]", [1]), ("a b", "a b"), ("NaN", "NaN")]
)
def test_a_parameter_of_any_type_is_json_where_it_can_be(text: str, value: Json):
    tools = [Tool("set", "", {"v": "any"}, ("v",))]
    assert parse_calls(glm("set", ("v", text)), tools, GLM) == [ToolCall("set", {"v": value})]


@given(st.text().filter(lambda t: "<" not in t), st.integers())
def test_what_is_written_is_read_in_both_forms(text: str, number: int):
    call = ToolCall("search", {"q": text, "n": number})
    written = glm("search", ("q", text), ("n", str(number)))
    assert parse_calls(written, TOOLS, GLM) == [call]
    body = json.dumps({"name": call.name, "arguments": call.arguments})
    assert parse_calls(f"<tool_call>{body}</tool_call>", TOOLS, HERMES) == [call]


@given(st.lists(st.sampled_from([*"aq3", "search", "<tool_call>", "</tool_call>", "<arg_key>",
       "</arg_key>", "<arg_value>", "</arg_value>"]), max_size=12))  # fmt: skip
def test_any_text_is_calls_or_one_error(parts: list[str]):
    with suppress(CallError):
        calls = parse_calls("<tool_call>" + "".join(parts), TOOLS, GLM)
        assert {c.name for c in calls} <= {"search", "set"}


@pytest.mark.parametrize(
    "value",
    [
        '"\\ud83d"',
        '{"\\ud83d": 1}',
        '["a", ["\\udc00"]]',
        "1" * 5000,
        '{"a": 1e999}',
        "[" * 100_000,
    ],
    ids=["half a pair", "as a key", "deep inside", "digits", "no float", "nested"],
)
def test_what_no_text_or_number_can_be_is_a_fault(value: str):
    with pytest.raises(CallError, match="is not JSON"):
        parse_calls(
            f'<tool_call>{{"name": "set", "arguments": {{"more": {value}}}}}</tool_call>',
            TOOLS, HERMES,
        )  # fmt: skip
    with pytest.raises(CallError, match="is not a JSON object"):
        parse_calls(glm("set", ("more", value)), TOOLS, GLM)


def test_a_whole_surrogate_pair_is_a_character():
    text = '<tool_call>{"name": "search", "arguments": {"q": "\\ud83d\\ude00"}}</tool_call>'
    (call,) = parse_calls(text, TOOLS, HERMES)
    assert call.arguments == {"q": "\U0001f600"}


def hermes(arguments: dict[str, Json]) -> str:
    return f"<tool_call>{json.dumps({'name': 'put', 'arguments': arguments})}</tool_call>"


@pytest.mark.parametrize(
    ("parameters", "is_taken"),
    [
        ({"type": "object"}, {"3", "three"}),  # names none, and closes nothing
        ({"type": "object", "additionalProperties": True}, {"3", "three"}),
        ({"type": "object", "additionalProperties": {}}, {"3", "three"}),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, {"3"}),
        ({"type": "object", "patternProperties": {"^x_": {"type": "integer"}}}, {"3", "three"}),
        ({"anyOf": [{"properties": {"x_a": {"type": "string"}}}]}, {"3", "three"}),
        ({"type": "object", "properties": {}}, set()),
        ({"type": "object", "additionalProperties": False}, set()),
        ({}, set()),
        (None, set()),
    ],
)
def test_arguments_without_a_name_in_the_schema_are_taken_where_it_allows_them(
    parameters: Json, is_taken: set[str]
):
    tool = Tool.of_function({"name": "put", "parameters": parameters})
    values: tuple[tuple[str, Json], ...] = (("3", 3), ("three", "three"))
    for text, value in values:
        written: list[tuple[CallForm, str]] = [
            (GLM, glm("put", ("x_a", text))),
            (HERMES, hermes({"x_a": value})),
        ]
        for form, call in written:
            if text in is_taken:
                assert parse_calls(call, [tool], form) == [ToolCall("put", {"x_a": value})]
                continue
            with pytest.raises(CallError, match=r"put has no parameter 'x_a'|x_a of put is not"):
                parse_calls(call, [tool], form)


def test_named_parameters_keep_their_types_and_others_are_refused_unless_they_are_allowed():
    named: dict[str, Json] = {"type": "object", "properties": {"q": {"type": "string"}}}
    closed, opened = (
        Tool.of_function({"name": "put", "parameters": named | more})
        for more in ({}, {"additionalProperties": True, "required": ["q", "n"]})
    )
    with pytest.raises(CallError, match="put has no parameter 'n'"):
        parse_calls(hermes({"q": "a", "n": 1}), [closed], HERMES)
    with pytest.raises(CallError, match="q of put is not a JSON string"):
        parse_calls(hermes({"q": 1, "n": 1}), [opened], HERMES)
    with pytest.raises(CallError, match="put lacks the argument n"):
        parse_calls(hermes({"q": "a"}), [opened], HERMES)
    assert parse_calls(hermes({"q": "a", "n": 1}), [opened], HERMES)[0].arguments["n"] == 1


def test_a_value_of_any_type_is_read_as_templates_write_it() -> None:
    values: dict[str, Json] = {"t": True, "f": False, "z": None, "x": 1e-07, "s": "Truely"}
    written = "".join(f"<parameter={key}>\n{values[key]}\n</parameter>" for key in values)
    text = f"<tool_call><function=put>{written}</function></tool_call>"
    takes_any = Tool("put", "Puts.", dict.fromkeys("tfzxs", "any"))
    assert parse_calls(text, [takes_any], QWEN3_CODER) == [ToolCall("put", values)]


NULLABLE: dict[str, Json] = {"anyOf": [{"type": "string"}, {"type": "null"}]}


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        *[(NULLABLE, text, text) for text in ("90210", '{"a": 1}', "true", "abc")],
        (NULLABLE, "null", None),
        ({"type": ["string", "null"]}, "5", "5"),
        ({"type": "string", "nullable": True}, "[1]", "[1]"),
        ({"enum": ["1", "2"]}, "1", "1"),
        ({"type": ["integer", "null"]}, "7", 7),
        ({"type": ["integer", "null"]}, "null", None),
        ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, "7", 7),
        ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, "7.5", "7.5"),
        ({"$ref": "#/$defs/x"}, "7", 7),
    ],
)
def test_a_parameter_of_several_types_gets_what_is_written(schema: Json, text: str, value: Json):
    """As SGLang's parsers give it to the tools of a served model."""
    parameters: Json = {"type": "object", "properties": {"x": schema}}
    tool = Tool.of_function({"name": "put", "parameters": parameters})
    coder = f"<function=put><parameter=x>\n{text}\n</parameter></function>"
    for form, call in (
        (GLM, glm("put", ("x", text))),
        (QWEN3_CODER, f"<tool_call>{coder}</tool_call>"),
        (
            HERMES,
            f"<tool_call>{json.dumps({'name': 'put', 'arguments': {'x': value}})}</tool_call>",
        ),
    ):
        assert parse_calls(call, [tool], form) == [ToolCall("put", {"x": value})]


@pytest.mark.parametrize(
    ("schema", "value", "named"),
    [
        (NULLABLE, 5, "null or string"),
        ({"type": ["integer", "null"]}, "abc", "integer or null"),
        ({"enum": ["a", "b"]}, 1, "string"),
        ({"type": "string"}, None, "string"),
    ],
)
def test_a_value_of_none_of_its_types_is_a_fault(schema: Json, value: Json, named: str):
    parameters: Json = {"type": "object", "properties": {"x": schema}}
    tool = Tool.of_function({"name": "put", "parameters": parameters})
    with pytest.raises(CallError, match=f"argument x of put is not a JSON {named}"):
        parse_calls(hermes({"x": value}), [tool], HERMES)
