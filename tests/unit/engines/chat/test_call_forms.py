"""Each form of tool calls: what real templates write is read again, by SGLang's parsers too.

Templates are TRL's; of Mistral's, DeepSeek-V3.1's and Phi-4's calls, some that write their marks.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.chat import Chat
from engines.chat.call_arguments import CallError
from engines.chat.call_forms import FORMS, CallForm, parse_calls
from engines.chat.chat_folder import load_chat_folder
from engines.chat.mode import Thoughts
from engines.chat.pieces import Pieces
from engines.rollout.records.packing import dump_turns, load_turns
from engines.types import Json, Message, Problem, Tool, ToolCall
from infra.errors import InputError
from tests.parts.whole_rendering import write_folder

trl = pytest.importorskip("trl")
pytestmark = pytest.mark.unit
TRL = Path(trl.__file__).parent / "chat_templates"
OF_FAMILIES = {
    "deepseekv3": "deepseekv3", "glm4moe": "glm", "gptoss": "harmony", "llama3_1": "llama3",
    "llama3_2": "llama3", "nemotron_3_nano": "qwen3_coder", "qwen2_5": "hermes",
    "nemotron_3_5_lightning": "qwen3_coder", "qwen3": "hermes", "qwen3_5_nothink": "qwen3_coder",
    "qwen3_5_think": "qwen3_coder", "qwen3_6": "qwen3_coder", "qwen3_8": "qwen3_coder",
    "qwen3_instruct_2507": "hermes", "qwen3_vl": "hermes",
}  # fmt: skip
MISTRAL = """\
{{- bos_token }}
{%- for message in messages %}
{%- if message.role == 'user' %}
{%- if tools %}{{- '[AVAILABLE_TOOLS] ' + tools | tojson + '[/AVAILABLE_TOOLS]' }}{% endif %}
{{- '[INST] ' + message.content + '[/INST]' }}
{%- elif message.tool_calls is defined %}
{{- '[TOOL_CALLS] [' }}
{%- for call in message.tool_calls %}
{%- if call.id is not defined or call.id | length != 9 %}
{{- raise_exception('ids have nine characters') }}
{%- endif %}
{{- (call.function | tojson)[:-1] + ', "id": "' + call.id + '"}' }}
{{- ']' + eos_token if loop.last else ', ' }}
{%- endfor %}
{%- elif message.role == 'tool' %}
{{- '[TOOL_RESULTS] {"content": ' + message.content + ', "call_id": "' }}
{{- message.tool_call_id + '"}[/TOOL_RESULTS]' }}
{%- else %}
{{- ' ' + message.content + eos_token }}
{%- endif %}
{%- endfor %}"""
TURNS = """\
{{- bos_token + (tools | tojson if tools else '') }}
{%- for message in messages %}
{%- if message.role == 'assistant' %}
{{- '<|start|>' + message.content }}
{%- if message.tool_calls %}
{{- BEGIN }}
{%- for call in message.tool_calls %}
{{- CALL }}
{%- endfor %}
{{- END }}
{%- endif %}
{{- eos_token }}
{%- else %}
{{- '<|' + message.role + '|>' + message.content }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start|>' }}{% endif %}"""
NAME, BODY = "call.function.name", "call.function.arguments | tojson"
SEPARATOR = "<\uff5ctool\u2581sep\uff5c>"
SECTION = "<\uff5ctool\u2581calls\u2581{}\uff5c>"
ONE = "<\uff5ctool\u2581call\u2581{}\uff5c>"


def template(call: str, begin: str = "", end: str = "") -> str:
    text = TURNS.replace("CALL", call).replace("BEGIN", repr(begin)).replace("END", repr(end))
    return "{#- </s> #}" + text


OWN = {
    "mistral": "{#- </s> #}" + MISTRAL,
    "mistral_args": template(f"'[TOOL_CALLS]' + {NAME} + '[ARGS]' + {BODY}"),
    "deepseekv31": template(
        f"'{ONE.format('begin')}' + {NAME} + '{SEPARATOR}' + {BODY} + '{ONE.format('end')}'",
        SECTION.format("begin"), SECTION.format("end"),
    ),
    "phi": template("'<|tool_call|>' + call.function | tojson + '<|/tool_call|>'"),
}  # fmt: skip
TOOL = Tool(
    "put", "Puts.",
    {"s": "string", "n": "integer", "x": "number", "on": "boolean", "a": "array", "o": "object"},
)  # fmt: skip
ARGUMENTS: list[dict[str, Json]] = [
    {"s": "plain"},
    {"s": "two\nlines, a \"quote\", a \\ and 'more' \u00fc \u4e2d \U0001f600"},
    {"s": "{\"a\": 1}", "n": 3, "x": 1.5, "on": True, "a": [1, "b"], "o": {"k": [False]}},
    {"n": -7, "on": False, "a": [], "o": {}},
    {"s": " spaces around "},
    {"s": "7"},
]  # fmt: skip


def written_calls() -> list[tuple[str, str, str]]:
    families = [
        (name, form, (TRL / f"{name}.jinja").read_text()) for name, form in OF_FAMILIES.items()
    ]
    return families + [(form, form, text) for form, text in OWN.items()]


EACH = pytest.mark.parametrize(
    ("name", "form", "text"), written_calls(), ids=[each[0] for each in written_calls()]
)


def problem(*tools: Tool) -> Problem:
    return Problem("p", "d", (Message("user", "Do."),), tools=tools or (TOOL,))


def caller(*arguments: dict[str, Json], content: str = "") -> Message:
    return Message("assistant", content, tool_calls=tuple(ToolCall("put", a) for a in arguments))


@EACH
def test_what_a_template_writes_is_read_again(
    tmp_path: Path, name: str, form: str, text: str
) -> None:
    chat = Chat.load(write_folder(tmp_path, text, "bytes"))
    found = Pieces(load_chat_folder(tmp_path).template).call_form()
    assert found is not None
    assert found.name == form
    asked = chat.decided(problem())
    for said in [
        *map(caller, ARGUMENTS),
        caller(*ARGUMENTS[:3]),
        caller({"s": "a"}, content="I do."),
    ]:
        try:
            ids = chat.turn_ids(asked, said)
        except InputError:
            assert form in ("llama3", "harmony")
            assert len(said.tool_calls) > 1, "one call a turn"
            continue
        if said.content and not all(word in chat.decode(ids) for word in (said.content, "put")):
            continue  # it writes a call or a text
        thought = chat.text_ids("Hm.</think>") if chat.mode.thoughts is Thoughts.ALWAYS else []
        turn = chat.parse(asked, [*thought, *ids])
        assert turn.error == "", (name, chat.decode(ids))
        assert turn.tool_calls == said.tool_calls, chat.decode(ids)
        is_thought = form == "harmony"  # it has no other place for a text before a call
        assert (turn.reasoning or "" if is_thought else turn.content.strip()) == said.content


@pytest.mark.parametrize(
    "name",
    ["deepseek_r1_distill", "gemma3", "llama3", "phi3_5", "cohere2", "qwen2_5_vl", "idefics3"],
)
def test_a_template_without_calls_is_refused_for_tools(tmp_path: Path, name: str) -> None:
    chat = Chat.load(write_folder(tmp_path, (TRL / f"{name}.jinja").read_text(), "bytes"))
    with pytest.raises(InputError, match=r"one of the forms that are read: deepseekv3, .*_coder$"):
        chat.prompt_ids(chat.decided(problem()))


def test_results_are_called_by_the_ids_that_the_model_wrote(tmp_path: Path) -> None:
    chat = Chat.load(write_folder(tmp_path, OWN["mistral"], "bytes"))
    written = (
        '[TOOL_CALLS] [{"name": "put", "arguments": {"n": 1}, "id": "abcDEF123"},'
        ' {"name": "put", "arguments": {"n": 2}, "id": "zzzzzzzz9"}]</s>'
    )
    turn = chat.parse(problem(), chat.text_ids(written))
    assert [call.id for call in turn.tool_calls] == ["abcDEF123", "zzzzzzzz9"]
    said = Message("assistant", turn.content, tool_calls=turn.tool_calls)
    results = [Message("tool", "10"), Message("tool", "20")]
    more = chat.decode(chat.continuation_ids(problem(), [said], results, chat.text_ids("</s>")[0]))
    assert more == (
        '[TOOL_RESULTS] {"content": 10, "call_id": "abcDEF123"}[/TOOL_RESULTS]'
        '[TOOL_RESULTS] {"content": 20, "call_id": "zzzzzzzz9"}[/TOOL_RESULTS]'
    )
    rows = [caller({"n": 1}, {"n": 2}), *results, caller({"n": 3}), Message("tool", "30")]
    text = chat.training_text(
        [*problem().messages, *rows, Message("assistant", "x")], (TOOL,), thinking=False
    )
    ids = [f'"{what}": "00000000{n}"' for n in range(3) for what in ("id", "call_id")]
    assert all(each in text.whole for each in ids)


def test_each_call_of_a_turn_that_nobody_sampled_has_an_id_for_its_result(tmp_path: Path) -> None:
    chat = Chat.load(write_folder(tmp_path, OWN["mistral"], "bytes"))
    said, results = caller({"n": 1}, {"n": 2}), [Message("tool", "10"), Message("tool", "20")]
    ids = chat.turn_ids(problem(), said)
    more = chat.continuation_ids(problem(), [said], results, ids[-1])
    prompt = chat.decode(chat.prompt_ids(problem()))
    rows = [*problem().messages, said, *results, Message("assistant", "x")]
    whole = chat.training_text(rows, (TOOL,), thinking=False).whole
    assert whole.startswith(prompt + chat.decode([*ids, *more]))


@pytest.mark.parametrize(
    ("form", "text", "reason"),
    [
        ("qwen3_coder", "<tool_call><function=put></tool_call>", "function tags do not balance"),
        ("qwen3_coder", "<tool_call>x<function=put></function></tool_call>", "do not balance"),
        ("qwen3_coder", "<tool_call><function=put><parameter=n>1</function></tool_call>", "do not"),
        ("qwen3_coder", "<tool_call><function=pu></function></tool_call>", "unknown tool 'pu'"),
        ("qwen3_coder", "<tool_call><function=put><parameter=n>\none\n</parameter></function>"
         "</tool_call>", "n of put is not a JSON integer: 'one'"),
        ("qwen3_coder", "<tool_call><function=put><parameter=n>1</parameter><parameter=n>2"
         "</parameter></function></tool_call>", "n of put is given twice"),
        ("qwen3_coder", "<tool_call><function=put><parameter=s><parameter=n></parameter></function>"
         "</tool_call>", "do not balance"),
        ("qwen3_coder", "<tool_call><function=put></function></tool_call>, done", "text after"),
        ("llama3", '{"name": "put", "parameters": {"n": 1}', "a tool call is not JSON"),
        ("llama3", '{"name": "put", "parameters": [1]}', "arguments of put are not a JSON object"),
        ("llama3", '{"name": "put", "parameters": {}}; {"name": "put"}', "text after a tool call"),
        ("llama3", '<|python_tag|>put.call(n=1)', "a tool call is not JSON"),
        ("llama3", '{"name": "put", "parameters": {"n": 1, "n": 2}}', "'n' stands twice"),
        ("mistral", '[TOOL_CALLS] [{"name": "put", "arguments": {}}]', "not nine letters or dig"),
        ("mistral", '[TOOL_CALLS] [{"name": "put", "arguments": {}, "id": "abc-EF123"}]', "nine"),
        ("mistral", '[TOOL_CALLS] {"name": "put"}', "tool calls are no list"),
        ("mistral", "[TOOL_CALLS] []", "tool calls are no list"),
        ("mistral", '[TOOL_CALLS] [{"name": "put", "id": "aaaaaaaa1"},'
         ' {"name": "put", "id": "aaaaaaaa1"}]', "two calls have the id aaaaaaaa1"),
        ("mistral_args", '[TOOL_CALLS]put{"n": 1}', r"lacks \[ARGS\]"),
        ("mistral_args", "[TOOL_CALLS]put[ARGS]{'n': 1}", "put's arguments is not JSON"),
        ("mistral_args", "[TOOL_CALLS]put[CALL_ID]1[ARGS]{}", "not nine letters"),
        ("phi", '<|tool_call|>{"name": "put", "arguments": {}}', "is not closed"),
        ("phi", '<|tool_call|>[1]<|/tool_call|>', "lacks its name"),
        ("phi", '<|tool_call|>[]<|/tool_call|>', "a list of tool calls is empty"),
        ("harmony", " to=functions.put json<|message|>{'n': 1}", "put's arguments is not JSON"),
        ("harmony", " to=functions.put<|channel|>commentary<|message|>[]", "are not a JSON object"),
        ("harmony", ' to=functions.put json<|message|>{"n": 1}{}', "text after a tool call"),
        ("harmony", " to=functions.get json<|message|>{}", "unknown tool 'get'"),
        ("harmony", " to=browser.open json<|message|>{}", "does not begin with its header"),
    ],
)  # fmt: skip
def test_a_fault_is_named(form: str, text: str, reason: str) -> None:
    (known,) = (each for each in FORMS if each.name == form)
    with pytest.raises(CallError, match=reason):
        parse_calls(text, [TOOL], known)


@pytest.mark.parametrize(("depth", "is_read"), [(190, True), (210, False), (950, False)])
def test_a_value_nested_too_deeply_to_be_kept_is_a_fault(depth: int, is_read: bool) -> None:
    """Python reads some that it cannot write again where more calls are on its stack."""
    value = "[" * depth + "{}" + "]" * depth
    for form, text in [
        ("glm", "<tool_call>put<arg_key>a</arg_key><arg_value>V</arg_value></tool_call>"),
        ("hermes", '<tool_call>{"name": "put", "arguments": {"a": V}}</tool_call>'),
    ]:
        (known,) = (each for each in FORMS if each.name == form)
        if is_read:
            calls = parse_calls(text.replace("V", value), [TOOL], known)
            said = Message("assistant", "", tool_calls=tuple(calls))
            assert load_turns(dump_turns([said])) == (said,)
        else:
            with pytest.raises(CallError, match="JSON"):
                parse_calls(text.replace("V", value), [TOOL], known)


@pytest.mark.parametrize(
    ("inside", "reason"),
    [
        ("", "a section of calls is no calls"),
        ("put", "a section of calls is no calls: 'put'"),
        ("<B>function<S>put\n{}<E>", "no `function`, name and block of JSON"),
        ("<B>function<S>put\n```json\n{'n': 1}\n```<E>", "put's arguments is not JSON"),
        ("<B>tool<S>put\n```json\n{}\n```<E>", "no `function`"),
        ("x<B>function<S>put\n```json\n{}\n```<E>", "does not begin with"),
        ("<B>function<S>put\n```json\n{}\n```<E>and", "is no calls: 'and'"),
    ],
)
def test_a_fault_in_a_section_of_calls_is_named(inside: str, reason: str) -> None:
    marks = {"<B>": ONE.format("begin"), "<E>": ONE.format("end"), "<S>": SEPARATOR}
    for short, mark in marks.items():
        inside = inside.replace(short, mark)
    (known,) = (each for each in FORMS if each.name == "deepseekv3")
    with pytest.raises(CallError, match=reason):
        parse_calls(SECTION.format("begin") + inside + SECTION.format("end"), [TOOL], known)
    with pytest.raises(CallError, match="is not closed"):
        parse_calls(SECTION.format("begin") + inside, [TOOL], known)


@pytest.mark.parametrize(
    ("said", "is_call"),
    [
        ('{"name": "put", "parameters": {"n": 1}}', True),
        ('\n {"type": "function", "name": "put", "parameters": {"n": 1}}', True),
        ('<|python_tag|>{"name": "put", "parameters": {"n": 1}}', True),
        ('{"name": "Bob", "age": 3}', False),
        ('{"answer": 4}', False),
        ('The call is {"name": "put", "parameters": {"n": 1}}', False),
    ],
)
def test_an_answer_in_json_is_no_call_of_llama(tmp_path: Path, said: str, is_call: bool) -> None:
    text = (TRL / "llama3_1.jinja").read_text()
    chat = Chat.load(write_folder(tmp_path, "{#- <|python_tag|> #}" + text, "bytes"))
    turn = chat.parse(problem(), chat.text_ids(f"{said}<|eot_id|>"))
    assert turn.error == ""
    assert bool(turn.tool_calls) is is_call
    assert turn.content == ("" if is_call else said)


def test_without_tools_an_answer_in_json_is_text(tmp_path: Path) -> None:
    chat = Chat.load(write_folder(tmp_path, (TRL / "llama3_1.jinja").read_text(), "bytes"))
    said = '{"name": "put", "parameters": {"n": 1}}'
    turn = chat.parse(replace(problem(), tools=()), chat.text_ids(f"{said}<|eot_id|>"))
    assert (turn.content, turn.error, turn.tool_calls) == (said, "", ())


def test_two_calls_are_refused_where_the_template_writes_one(tmp_path: Path) -> None:
    text = (TRL / "llama3_1.jinja").read_text()
    chat = Chat.load(write_folder(tmp_path, text, "bytes"))
    both = (
        '{"name": "put", "parameters": {"n": 1}}{"name": "put", "parameters": {"n": 2}}<|eot_id|>'
    )
    assert "text after a tool call" in chat.parse(problem(), chat.text_ids(both)).error


@pytest.mark.parametrize("form", FORMS[:-2], ids=lambda form: form.name)
def test_a_megabyte_of_calls_is_read_in_time_that_grows_with_it(form: CallForm) -> None:
    begin, end = ONE.format("begin"), ONE.format("end")
    one = {
        "glm": "<tool_call>put</tool_call>",
        "qwen3_coder": "<tool_call><function=put></function></tool_call>",
        "hermes": '<tool_call>{"name": "put"}</tool_call>',
        "deepseekv3": f"{begin}function{SEPARATOR}put\n```json\n{{}}\n```{end}",
        "deepseekv31": f"{begin}put{SEPARATOR}{{}}{end}",
        "mistral": '{"name": "put", "id": "%09d"}',
        "mistral_args": "[TOOL_CALLS]put[CALL_ID]%09d[ARGS]{}",
        "phi": '<|tool_call|>{"name": "put"}<|/tool_call|>',
    }[form.name]
    count = (1 << 20) // len(one)
    each = [one % n if "%" in one else one for n in range(count)]
    text = f"[TOOL_CALLS][{','.join(each)}]" if form.name == "mistral" else "".join(each)
    if form.name.startswith("deepseekv3"):
        text = SECTION.format("begin") + text + SECTION.format("end")
    begun = time.process_time()
    assert len(parse_calls(text, [TOOL], form)) == count
    assert time.process_time() - begun < 10, "ids compared with all others took minutes"


def test_a_call_without_an_id_is_an_error_where_the_template_writes_one(tmp_path: Path) -> None:
    """Its result would be called by an id that the model never wrote."""
    call = f"'[TOOL_CALLS]' + {NAME} + '[CALL_ID]' + call.id + '[ARGS]' + {BODY}"
    chat = Chat.load(write_folder(tmp_path, template(call), "bytes"))
    for text, reason in [
        ('[TOOL_CALLS]put[CALL_ID]abcdefgh1[ARGS]{"n": 1}</s>', ""),
        ('[TOOL_CALLS]put[ARGS]{"n": 1}</s>', "a call lacks its id"),
    ]:
        error = chat.parse(problem(), chat.text_ids(text)).error
        assert error.startswith(reason), error
        assert bool(error) is bool(reason)


@given(st.dictionaries(st.sampled_from("sn"), st.none(), min_size=1), st.text(), st.integers())
def test_any_text_and_number_is_read_as_it_was_written(keys: Any, text: str, number: int) -> None:
    arguments: dict[str, Json] = {key: text if key == "s" else number for key in keys}
    body = json.dumps(arguments)
    named = json.dumps({"name": "put", "arguments": arguments})
    begin, end = ONE.format("begin"), ONE.format("end")
    written = {
        "llama3": json.dumps({"name": "put", "parameters": arguments}),
        "mistral": f'[TOOL_CALLS][{named[:-1]}, "id": "abcdefgh1"}}]',
        "mistral_args": f"[TOOL_CALLS]put[CALL_ID]abcdefgh1[ARGS]{body}",
        "phi": f"<|tool_call|>[{named}]<|/tool_call|>",
        "harmony": "<|channel|>commentary to=functions.put <|constrain|>json<|message|>" + body,
        "deepseekv3": f"{SECTION.format('begin')}{begin}function{SEPARATOR}put\n```json\n"
        f"{body}\n```{end}{SECTION.format('end')}",
        "deepseekv31": f"{SECTION.format('begin')}{begin}put<\uff5ctool\u2581sep\uff5c>{body}{end}"
        f"{SECTION.format('end')}",
    }
    for form in FORMS:
        if form.name in written:
            assert parse_calls(written[form.name], [TOOL], form) == [ToolCall("put", arguments)]


def test_a_turn_behind_results_has_a_thought_where_its_header_opens_one(tmp_path: Path) -> None:
    """DeepSeek's template opens one behind a question, and writes no header behind results."""
    chat = Chat.load(write_folder(tmp_path, (TRL / "deepseekv3.jinja").read_text(), "bytes"))
    asked = chat.decided(problem())
    with pytest.raises(InputError, match="name each with its parameters in a system message"):
        chat.prompt_ids(asked)
    listed = Message("system", f"Call put with {', '.join(TOOL.parameters)}.")
    asked = replace(asked, messages=(listed, *asked.messages))
    prompt, said = chat.prompt_ids(asked), caller({"n": 1})
    turn = [*chat.text_ids("Hm.</think>"), *chat.turn_ids(asked, said)]
    assert chat.parse(asked, turn, prompt).tool_calls == said.tool_calls
    more = chat.continuation_ids(asked, [said], [Message("tool", "one")], turn[-1])
    answer = [*chat.text_ids("It is 1."), turn[-1]]
    assert "one pair is expected" in chat.parse(asked, answer, prompt).error
    assert chat.parse(asked, answer, [*prompt, *turn, *more]).content == "It is 1."
