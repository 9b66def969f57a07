"""What each layout of rows says, what of a row nothing reads, and what is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from curricula.rows.conversation import Conversation
from engines.types import Message, ToolCall
from infra.data_files.rows import BadRow, Reason
from tests.parts.row_parts import ANSWER, ASK, prompt, refusal, sft, talk

pytestmark = pytest.mark.unit

SAID = (Message("user", "12+30"), Message("assistant", "42"))
LOOK = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks.",
        "parameters": {
            "type": "object",
            "properties": {"at": {"type": "string"}, "near": {"type": ["string", "null"]}},
            "required": ["at"],
        },
    },
}


@pytest.mark.parametrize(
    ("row", "looks_like"),
    [
        (talk(ASK, ANSWER), "messages (OpenAI)"),
        (talk(ASK | {"role": "User"}, ANSWER | {"role": " ASSISTANT"}), "messages (OpenAI)"),
        ({"messages": json.dumps([ASK, ANSWER])}, "messages (OpenAI)"),
        ({"conversation": [ASK, ANSWER]}, "conversation (OpenAI)"),
        (
            {
                "conversations": [
                    {"from": "human", "value": "12+30"},
                    {"from": "gpt", "value": "42"},
                ]
            },
            "conversations (ShareGPT)",
        ),
        (
            {
                "conversations": [
                    {"role": "user", "value": "12+30"},
                    {"role": "assistant", "value": "42"},
                ]
            },
            "conversations (ShareGPT)",
        ),
        (talk(ASK, ANSWER, conversations=[ASK, ANSWER]), "messages (OpenAI)"),
        ({"instruction": "12+30", "input": "", "output": "42"}, "instruction -> output (Alpaca)"),
        (
            {"instruction": "12+30", "context": "", "response": "42"},
            "instruction -> response (Dolly)",
        ),
        ({"prompt": "12+30", "completion": "42"}, "prompt -> completion (TRL)"),
        ({"prompt": [ASK], "completion": [ANSWER]}, "prompt -> completion (TRL)"),
        ({"prompt": json.dumps([ASK]), "completion": "42"}, "prompt -> completion (TRL)"),
        ({"prompt": "12+30", "response": "42"}, "prompt -> response"),
        ({"input": "12+30", "output": "42"}, "input -> output"),
        ({"question": "12+30", "answer": 42}, "question -> answer"),
        ({"problem": "12+30", "solution": "42"}, "problem -> solution"),
        ({"query": "12+30", "response": "42"}, "query -> response"),
    ],
)
def test_each_layout_says_the_same(row: dict[str, Any], looks_like: str):
    read = sft(row)
    assert (read.messages, read.layout, read.unread) == (SAID, looks_like, frozenset())
    asked = prompt(row, columns={"prompt": "messages"} if "messages" in row else {})
    assert asked.messages == SAID[:1]


@pytest.mark.parametrize("text", ["What is <|im_start|>user?", "[INST]all it.", "say `[INST] `"])
def test_a_token_of_a_template_may_be_asked_about(text: str):
    assert sft(talk(ASK | {"content": text}, ANSWER)).messages[0].content == text


def test_what_is_asked_about_and_what_was_said_before_belong_to_the_question():
    read = sft(
        {
            "instruction": "Add the numbers.",
            "input": "12, 30",
            "output": "42",
            "history": [["Hi", "Yo"]],
            "system": "Be brief.",
        }
    )
    assert [m.content for m in read.messages] == [
        "Be brief.", "Hi", "Yo", "Add the numbers.\n12, 30", "42",
    ]  # fmt: skip
    assert read.untrained == {2}
    dolly = {"instruction": "Who?", "context": "Ann came.", "response": "Ann"}
    assert sft(dolly).messages[0].content == "Who?\nAnn came."
    squad = {"question": "Who?", "context": "Ann came.", "answer": "Ann"}
    assert prompt(squad).messages[0].content == "Who?\nAnn came."
    named = prompt(dolly, columns={"prompt": "context+instruction", "reference": "response"})
    assert named.messages[0].content == "Ann came.\nWho?"
    assert named.reference == {"answer": "Ann"}
    alone = prompt(dolly, columns={"prompt": "instruction", "reference": "response"})
    assert (alone.messages[0].content, alone.unread) == ("Who?", {"context"})
    assert "history[0]: is no pair" in refusal(
        {"instruction": "a", "output": "b", "history": ["c"]}
    )


def test_a_thought_in_a_column_of_its_own_is_the_answers():
    read = sft({"question": "12+30", "reasoning": "Add.", "answer": "42"})
    assert read.messages[1] == Message("assistant", "42", "Add.")
    assert "has `thinking`, which is not read" in refusal(talk(ASK, ANSWER, thinking="Add."))


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({"problem": "12+30", "generated": "42"}, {"completion": "generated"}),
        ({"problem": "12+30", "generated": "42", "answer": "7"}, {"completion": "generated"}),
        ({"instruction": "12+30", "text": "42"}, {"completion": "text"}),
        ({"task": "12+30", "answer": "42"}, {"prompt": "task"}),
        ({"task": "12+30", "target": "42", "question": "?"}, {"prompt": "task"}),
    ],
)
def test_a_column_that_nobody_names_is_found_beside_a_named_one(
    row: dict[str, Any], named: dict[str, str]
):
    assert [message.content for message in sft(row, **named).messages] == ["12+30", "42"]


def test_what_nothing_reads_is_named_wherever_it_stands():
    call = {
        "id": "c1",
        "type": "function",
        "index": 3,
        "function": {"name": "look", "arguments": {}},
    }
    read = sft(
        talk(
            ASK | {"name": "Ann", "ts": 7},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "red"},
            ANSWER | {"id": None, "logprobs": []},
            id=3,
            source="web",
            note=None,
        )
    )
    assert read.unread == {"id", "source", "messages[].name", "messages[].ts", "tool_calls[].index"}
    verl = {
        "data_source": "m",
        "prompt": [ASK],
        "reward_model": {"style": "rule", "ground_truth": "42"},
        "extra_info": {"split": "train"},
    }
    found = prompt(verl, columns={"metadata": ["extra_info.split"]})
    assert (found.reference, found.metadata) == ({"answer": "42"}, {"extra_info.split": "train"})
    assert (found.layout, found.unread) == (
        "prompt, reference reward_model.ground_truth",
        {"data_source"},
    )
    slime = prompt({"prompt": [ASK], "label": "42", "metadata": {"level": 1}})
    assert (slime.reference, slime.unread) == ({"answer": "42"}, {"metadata"})


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (talk(ASK, ANSWER, images=["cat.png"]), "has `images`, which is not read"),
        (talk(ASK, ANSWER, loss_mask=[0, 1]), "has `loss_mask`, which is not read"),
        (talk(ASK, ANSWER, loss_weight=0.0), "has `loss_weight`, which is not read"),
        (talk(ASK, ANSWER, functions="[]{}"), "has `functions`, which is not read; if it holds"),
        (talk(ASK, ANSWER, weight=-1), "weight: -1 is no weight"),
        (talk(ASK | {"image": "a.png"}, ANSWER), r"messages[0]: has `image`, which is not read"),
        (talk(ASK, ANSWER | {"mask": 1}), "messages[1]: has `mask`, which is not read"),
        (talk(ASK, ANSWER | {"train_detail": [{"train": False}]}), "has `train_detail`, which is"),
        (talk(ASK, ANSWER | {"train_on_turn": False}), "has `train_on_turn`, which is not read"),
        (talk(ASK, ANSWER | {"function_call": {"name": "a"}}), "has `function_call`, which is not"),
        (talk(ASK | {"train": True}, ANSWER), "only what the assistant says is trained on"),
        (talk(ASK, ANSWER | {"train": True, "weight": 0}), "weight and train differ"),
        (talk(ASK, ANSWER | {"loss": "yes"}), "loss is 'yes'; allowed: 0 and 1"),
        (talk(ASK, ANSWER | {"loss_mask": [0, 1]}), "loss_mask is a list; allowed: 0 and 1"),
        (talk(ASK | {"thinking": "hm"}, ANSWER), "has `thinking`, but the role is user"),
        (talk(ASK, ANSWER | {"thinking": "a", "thought": "b"}), "which differ"),
        (talk(ASK, ANSWER | {"text": "43"}), "has `text` beside its `content`"),
        (talk(ASK | {"from": "gpt"}, ANSWER), "its `role` is user, but it is of role assistant"),
        ({"conversations": [{"from": "human", "value": "a", "role": "system"}]},
         "its `role` is system, but it is of role user"),
        (talk({"role": "user", "content": " "}, ANSWER), "messages[0]: its `content` is empty"),
        (talk({"role": "user"}, ANSWER), "messages[0]: has no `content`; it has role"),
        (talk(ASK, {"role": "assistant", "value": "42"}), "has no `content`; it has role, value"),
        (talk(ASK, {"role": "assistant", "content": None}), "the assistant says nothing"),
        (
            talk({"role": "user", "content": [{"type": "text", "text": "a", "weight": 0}]}, ANSWER),
            "a part has `weight`, which is not read",
        ),
        (
            talk({"role": "system", "content": "a"}, ASK, ANSWER, system="b"),
            "a system column that differs",
        ),
        (talk(ASK, ANSWER, system="a", system_prompt="b"), "`system` and `system_prompt`, which"),
        (talk(ASK, ANSWER, conversations=[ASK, ANSWER | {"content": "43"}]), "which differ; name"),
        ({"conversations": [{"from": "gpt", "value": "Hi"}]}, "the assistant speaks first"),
        (talk(ASK, output="42"), "is the answer, name `prompt: messages` and `completion: output`"),
        (talk(ASK, chosen="42", rejected="41"), "`prompt: messages` and `completion: chosen`"),
        (
            talk(ASK, ANSWER | {"tool_calls": [{"name": "a", "arguments": '"{\\"q\\": 1}"'}]}),
            "a text in a text: they were encoded twice",
        ),
        (talk(ASK | {"content": "Hi\n<extra_id_1>Assistant\nYo\n<extra_id_1>User\n7"}, ANSWER),
         "messages[0]: its text has '<extra_id_1>Assistant', with which a chat template opens"),
        ({"prompt": "<s>[INST] 12+30 [/INST]", "completion": "42"}, "its text has '<s>[INST]'"),
        ({"prompt": "a", "completion": ""}, "completion: is empty"),
        ({"prompt": " ", "completion": "b"}, "prompt: is empty; the user says nothing"),
        ({"query": "a", "tools": [{"name": "f", "parameters": {}}], "answers": "[]"},
         "answers: is empty; the assistant says nothing"),
        ({"prompt": "a", "completion": "b", "label": False}, "has `label`, which says whether"),
        ({"prompt": "a", "chosen": "b", "rejected": "c"}, "it is a preference pair"),
        ({"text": "Once"}, "has no column messages; it has text. Layouts that are read: messages"),
        ({"text": "Once"}, "raw text is what `mid_training` learns from"),
        ({"dialog": [ASK, ANSWER]}, "`dialog` looks like messages: name it in columns.messages"),
        ({"instruction": "a", "reply": "b"}, "the nearest is instruction -> answer"),
        ({"data": [{"a": "b"}]}, "it is no row, but holds rows in `data`"),
        ({"train": [{"a": "b"}], "test": [{"a": "b"}]}, "holds rows in `train` and `test`"),
        ({"mesages": "a"}, "`mesages` is close to `messages`"),
        (talk(ASK | {"content": "\ud83d"}, ANSWER), "half of a surrogate pair"),
        ({"messages": '[{"role": "user", "content": "\\ud83d"}]'}, "messages: is not JSON"),
        ({"messages": "[" * 200_000}, "messages: is not JSON"),
    ],
)  # fmt: skip
def test_what_changes_the_meaning_of_a_row_and_is_not_read_makes_it_bad(
    row: dict[str, Any], said: str
):
    assert said in refusal(row)


def called(arguments: Any, tools: Any = (LOOK,), **more: Any) -> Conversation:
    function = {"name": "look", **more} | ({} if arguments is None else {"arguments": arguments})
    call = {"role": "assistant", "tool_calls": [{"function": function}]}
    return sft(
        talk(ASK, call, {"role": "tool", "content": "red"}, ANSWER, tools=tools and [*tools])
    )


@pytest.mark.parametrize("mark", ["weight", "train", "training", "loss", "step_loss_mask"])
@pytest.mark.parametrize("is_sharegpt", [False, True])
def test_a_turn_that_is_marked_so_is_only_read(mark: str, is_sharegpt: bool):
    said = [ASK, ANSWER | {mark: False}, ASK, ANSWER | {mark: 1}]
    names = {"user": "human", "assistant": "gpt"}
    renamed: dict[str, str] = {"role": "from", "content": "value"}
    shared = [
        {renamed.get(key, key): names.get(str(said), said) for key, said in message.items()}
        for message in said
    ]
    row = {"conversations": shared} if is_sharegpt else talk(*said)
    assert sft(row).untrained == {1}


def test_parts_of_a_message_are_its_text_and_its_thought():
    parts = [{"type": "thinking", "thinking": "hm"}, {"type": "output_text", "text": "42"}]
    assert sft(talk(ASK, ANSWER | {"content": parts})).messages[1] == Message(
        "assistant", "42", "hm"
    )


def test_arguments_are_json_objects_and_nothing_else():
    assert called('{"at": "ant"}').messages[1].tool_calls == (ToolCall("look", {"at": "ant"}),)
    assert called(None).messages[1].tool_calls == called("").messages[1].tool_calls
    for arguments in ("0", "false", "[]", 0, False, []):
        with pytest.raises(BadRow, match="arguments of look are no JSON object"):
            called(arguments)
    for arguments in ('{"at": "\\ud83d"}', '{"at": ' + "[" * 200_000, '{"at": NaN}'):
        with pytest.raises(BadRow, match="is not JSON") as refused:
            called(arguments)
        assert refused.value.reason is Reason.TOOLS
    deep: Any = {}
    for _ in range(200):
        deep = {"at": deep}
    for arguments in (deep, json.dumps(deep)):
        with pytest.raises(BadRow, match="is nested deeper than 100"):
            called(arguments)
    for _ in range(2000):
        deep = [deep]
    for row in (talk(ASK | {"content": deep}, ANSWER), talk(ASK, ANSWER, tools=deep)):
        with pytest.raises(BadRow, match="nested"):
            sft(row)
    with pytest.raises(BadRow, match="nested too deeply"):
        prompt({"prompt": "a", "answer": deep})
    with pytest.raises(BadRow, match="look has no `arguments`; it has parameters"):
        called(None, parameters={"at": "ant"})


def test_nulls_that_a_tool_has_no_place_for_are_no_arguments():
    function = LOOK["function"]
    assert isinstance(function, dict)
    given = {
        **function,
        "strict": None,
        "parameters": {
            "type": "object",
            "required": None,
            "properties": {
                "at": {"type": "string", "description": None},
                "near": {"type": ["string", "null"], "default": None, "enum": ["a", None]},
                "a": None,
            },
        },
    }
    read = called({"at": "ant", "near": None, "a": None}, [{"function": given}])
    assert read.messages[1].tool_calls == (ToolCall("look", {"at": "ant", "near": None}),)
    (tool,) = read.tools
    assert tool.schema is not None
    assert tool.schema["parameters"] == {
        "type": "object",
        "properties": {
            "at": {"type": "string"},
            "near": {"type": ["string", "null"], "default": None, "enum": ["a", None]},
        },
    }
    assert (dict(tool.parameters), tool.required) == ({"at": "string", "near": "any"}, ())


def test_tools_keep_their_parameters_in_every_form():
    function = LOOK["function"]
    assert isinstance(function, dict)
    anthropic = {"name": "look", "input_schema": function["parameters"]}
    for tool in (LOOK, function, json.dumps(function), anthropic):
        (read,) = called({"at": "ant"}, [tool]).tools
        assert (dict(read.parameters), read.required) == ({"at": "string", "near": "any"}, ("at",))
    flat = {"name": "look", "parameters": {"at": {"description": "Where", "type": "str"}}}
    assert dict(called({}, [flat]).tools[0].parameters) == {"at": "any"}


def test_results_of_tools_come_in_the_order_of_their_calls():
    def results(*said: dict[str, Any], ids: bool = True) -> list[str]:
        calls = [
            {**({"id": f"c{n}"} if ids else {}), "function": {"name": name, "arguments": {}}}
            for n, name in enumerate(("look", "add"))
        ]
        turn = {"role": "assistant", "content": "", "tool_calls": calls}
        read = sft(talk(ASK, turn, *({"role": "tool", **each} for each in said), ANSWER))
        return [m.content for m in read.messages if m.role == "tool"]

    one, two = {"tool_call_id": "c0", "content": "0"}, {"tool_call_id": "c1", "content": "1"}
    assert results(one, two) == results(two, one) == ["0", "1"]
    named = [{"name": "add", "content": "1"}, {"name": "look", "content": "0"}]
    assert results(*named) == results(*named, ids=False) == ["0", "1"]
    assert results({"content": "0"}, {"content": "1"}) == ["0", "1"]
    for wrong, said in (
        ([one, one], "one call has two results"),
        (
            [one, two | {"tool_call_id": "c9"}],
            "the call 'c9'; the calls before it are 'c0', 'c1'",
        ),
        ([one, {"content": "1"}], "some results name their call, others do not"),
        ([{"name": "sub", "content": "1"}], "is of sub, but what was called is look, add"),
    ):
        with pytest.raises(BadRow, match=said):
            results(*wrong)


def test_a_prompt_finds_its_reference_or_says_what_may_be_one():
    for name in ("label", "expected_answer", "final_answer", "target"):
        assert prompt({"prompt": "12+30", name: "42"}).reference == {"answer": "42"}, name
    gsm = prompt({"question": "12+30", "answer": "12+30=<<12+30=42>>42\n#### 42"})
    assert gsm.reference == {"answer": "42"}
    assert gsm.layout == "question, reference answer, of which what follows #### counts (GSM8K)"
    dotted = {"reference": "info.gold.value"}
    held = {"prompt": "a", "info": json.dumps({"gold": {"value": 3}})}
    assert prompt(held, columns=dotted).reference == {"answer": 3}
    for row, said in (
        ({"prompt": "a", "completion": "b"}, "columns that look like one: completion"),
        ({"prompt": "a", "answers": ["b"]}, "columns that look like one: answers"),
        ({"prompt": "a", "info": {"gold": 3}}, "columns that look like one: info.gold"),
        ({"prompt": "a", "answer": None}, "has no reference; the rewards read `answer` of it"),
        ({"prompt": "a", "reference": {"gold": 3}}, "reference: is an object of gold; the rewards"),
    ):
        with pytest.raises(BadRow) as refused:
            prompt(row, needs=["answer"])
        assert said in str(refused.value)
        assert refused.value.reason is Reason.REFERENCE
    with pytest.raises(BadRow, match=r"info: has no field silver; it has gold"):
        prompt(held, columns={"reference": "info.silver"})
    with pytest.raises(BadRow, match=r"`dialog` looks like messages: name it in columns\.prompt"):
        prompt({"dialog": [ASK]})
    with pytest.raises(BadRow, match="the assistant speaks first"):
        prompt({"prompt": [ANSWER, ASK]})
    quiz = {"question": "12+30", "choices": ["41", "42"], "answer": "B"}
    with pytest.raises(BadRow, match="has `choices`, which is not read; write them into the text"):
        prompt(quiz)
    assert prompt(quiz, columns={"prompt": "question"}).unread == {"choices"}
    with pytest.raises(BadRow, match=r"prompt\[0\]: has `images`"):
        prompt({"prompt": [ASK | {"images": ["a"]}]})
