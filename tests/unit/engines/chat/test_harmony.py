"""gpt-oss: its template (TRL's copy) is rendered, masked and read back; answers are read as its
models write them."""

from __future__ import annotations

import json
import re
from itertools import groupby
from pathlib import Path

import pytest

from engines.chat import Chat
from engines.types import Message, Problem, Status, Tool, ToolCall, Transcript
from infra.errors import InputError
from rewards.text import is_cut_in_thought
from tests.parts.whole_rendering import LOOK, Talk, by_transformers, write_folder

trl = pytest.importorskip("trl")
pytestmark = pytest.mark.unit
TEMPLATES = Path(trl.__file__).parent / "chat_templates"
ASK, FOUND = Message("user", "Hi"), Message("tool", 'a "red" one')
CALLS = (ToolCall("look", {"at": "x", "n": 2}),)
SAY, THINK = Message("assistant", "Yo"), Message("assistant", "Yo", "So.")
CALL, THINK_CALL = Message("assistant", "", None, CALLS), Message("assistant", "", "I look.", CALLS)
USER = "<|start|>user<|message|>Hi<|end|><|start|>assistant"
THOUGHT, FINAL = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
NEXT = "<|end|><|start|>assistant"
CALLED = ' to=functions.look<|channel|>commentary json<|message|>{"at": "x", "n": 2}<|call|>'
RESULT = (
    "<|start|>functions.look to=assistant<|channel|>commentary<|message|>"
    '"a \\"red\\" one"<|end|><|start|>assistant'
)
OWN = '<|channel|>commentary to=functions.look <|constrain|>json<|message|>{"at": "x", "n": 2}'
"""a call as models write it"""


def load(folder: Path, name: str = "gptoss") -> Chat:
    return Chat.load(write_folder(folder, (TEMPLATES / f"{name}.jinja").read_text(), "bytes"))


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Chat:
    return load(tmp_path_factory.mktemp("gptoss"))


def asked(*tools: Tool, thinking: bool | None = None) -> Problem:
    return Problem("p", "d", (ASK,), tools=tools, thinking=thinking)


def trained(chat: Chat, messages: list[Message]) -> str:
    tools = [LOOK] if any(message.tool_calls for message in messages) else []
    thinking = any(message.reasoning for message in messages)
    ids, mask = chat.masked_ids([chat.training_text(messages, tools, thinking=thinking)])[0]
    parts = ""
    for is_said, run in groupby(zip(ids, mask, strict=True), key=lambda pair: pair[1]):
        said = chat.decode([token for token, _ in run])
        parts += f"[[{said}]]" if is_said else said
    return parts[parts.find("<|start|>user") :]


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([ASK, THINK], f"{USER}[[{THOUGHT}So.{NEXT}{FINAL}Yo<|return|>]]"),
        # The end of an earlier answer would not end generation: it is read.
        ([ASK, SAY, ASK, THINK],
         f"{USER}[[{FINAL}Yo]]<|end|>{USER}[[{THOUGHT}So.{NEXT}{FINAL}Yo<|return|>]]"),
        ([ASK, CALL, FOUND, SAY, ASK, SAY],
         f"{USER}[[{CALLED}]]{RESULT}[[{FINAL}Yo]]<|end|>{USER}[[{FINAL}Yo<|return|>]]"),
        # The answer follows the call's thought, as in its prompt.
        ([ASK, THINK_CALL, FOUND, THINK],
         f"{USER}[[{THOUGHT}I look.<|end|><|start|>assistant{CALLED}]]{RESULT}"
         f"[[{THOUGHT}So.{NEXT}{FINAL}Yo<|return|>]]"),
        ([ASK, THINK_CALL, FOUND, THINK_CALL, FOUND, SAY],
         f"{USER}[[{THOUGHT}I look.<|end|><|start|>assistant{CALLED}]]{RESULT}"
         f"[[{THOUGHT}I look.<|end|><|start|>assistant{CALLED}]]{RESULT}[[{FINAL}Yo<|return|>]]"),
    ],
)  # fmt: skip
def test_a_mask_is_the_one_made_by_hand(chat: Chat, messages: list[Message], text: str) -> None:
    assert trained(chat, messages) == text


def test_every_turn_is_trained_behind_the_prompt_that_transformers_renders(chat: Chat) -> None:
    from transformers import PreTrainedTokenizerFast

    theirs = PreTrainedTokenizerFast(tokenizer_object=chat._tokenizer)
    theirs.chat_template = chat._pieces.template.text.replace(
        'strftime_now("%Y-%m-%d")', '"2024-07-26"'
    )
    talk = Talk("", (ASK, THINK_CALL, FOUND, THINK_CALL, FOUND, THINK), (LOOK,), True)
    text = chat.training_text(talk.messages, talk.tools, thinking=True)
    ids, mask = chat.masked_ids([text])[0]
    begins = [at for at in range(1, len(ids)) if mask[at] and not mask[at - 1]]
    turns = [at for at, message in enumerate(talk.messages) if message.role == "assistant"]
    assert [ids[:begin] for begin in begins] == [by_transformers(theirs, talk, at) for at in turns]


def test_a_template_that_marks_turns_trains_no_end_that_would_not_end_them(tmp_path: Path) -> None:
    """TRL's training variant puts its marks around the header and the end of each turn."""
    chat = load(tmp_path, "gptoss_training")
    header = "<|start|>assistant"
    user = USER.removesuffix(header)
    assert trained(chat, [ASK, SAY, ASK, SAY]) == (
        f"{user}[[{header}{FINAL}Yo]]<|end|>{user}[[{header}{FINAL}Yo<|return|>]]"
    )


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([ASK, THINK, ASK, THINK], r"messages\[1\]: .* does not keep the prefix"),
        ([ASK, THINK_CALL, FOUND, SAY, ASK, SAY], r"messages\[3\]: .* does not keep the prefix"),
        ([ASK, Message("assistant", "I look.", None, CALLS)], r"messages\[1\]: .* as its thought"),
        ([ASK, Message("assistant", "", None, CALLS * 2), FOUND, FOUND, SAY], "tool calls"),
        ([ASK, Message("assistant", "<|end|>")], r"messages\[1\]: its text holds <\|end\|>"),
    ],
)
def test_what_the_template_would_change_is_refused(
    chat: Chat, messages: list[Message], reason: str
) -> None:
    with pytest.raises(InputError, match=reason):
        trained(chat, messages)


def test_a_thought_does_not_end_generation(chat: Chat, tmp_path: Path) -> None:
    assert {chat.decode([token]) for token in chat.stop_token_ids} == {"<|return|>", "<|call|>"}
    folder = write_folder(tmp_path, (TEMPLATES / "gptoss.jinja").read_text(), "bytes")
    end = chat.vocabulary["<|end|>"]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [end]}))
    with pytest.raises(InputError, match=f"eos_token_id names {end}, .* ends a thought"):
        Chat.load(folder)


@pytest.mark.parametrize("turn", [SAY, THINK, CALL, THINK_CALL])
def test_a_turn_is_read_back_and_continued_as_the_template_does(chat: Chat, turn: Message) -> None:
    tools = [LOOK] if turn.tool_calls else []
    problem = asked(*tools)
    ids = chat.turn_ids(problem, turn)
    assert chat.parse(problem, ids).message() == turn
    new = [FOUND] if turn.tool_calls else [ASK]
    more = chat.decode(chat.continuation_ids(problem, [turn], new, ids[-1]))
    assert more == (RESULT if turn.tool_calls else USER)
    cut = chat.decode(chat.continuation_ids(problem, [turn], new, None))
    assert cut == ("<|call|>" + RESULT if turn.tool_calls else "<|end|>" + USER)


@pytest.mark.parametrize(
    ("said", "thought", "content", "calls"),
    [
        (f"{FINAL}Yo<|return|>", None, "Yo", ()),
        (f"{THOUGHT}So.{NEXT}{FINAL}Yo<|return|>", "So.", "Yo", ()),
        (f"{THOUGHT}So.{NEXT}{FINAL}<|return|>", "So.", "", ()),
        (f'{THOUGHT}So.{NEXT}<|channel|>final <|constrain|>json<|message|>{{"a": 1}}<|return|>',
         "So.", '{"a": 1}', ()),
        (f"{OWN}<|call|>", None, "", CALLS),
        (f"{THOUGHT}So.{NEXT}{OWN}<|call|>", "So.", "", CALLS),
        (f"{THOUGHT}So.{NEXT}{CALLED}", "So.", "", CALLS),
        (f"{THOUGHT}So.{NEXT}{OWN.replace(' <|constrain|>json', '')}<|call|>", "So.", "", CALLS),
        (f"{THOUGHT}So.{NEXT}<|channel|>commentary<|message|>I look.{NEXT}{OWN}<|call|>",
         "So.", "I look.", CALLS),
        (f"{THOUGHT}So.{NEXT}{FINAL}cut by len", "So.", "cut by len", ()),
    ],
)  # fmt: skip
def test_an_answer_is_read_as_models_write_it(
    chat: Chat, said: str, thought: str | None, content: str, calls: tuple[ToolCall, ...]
) -> None:
    turn = chat.parse(asked(LOOK), chat.text_ids(said))
    assert turn.error == ""
    assert (turn.reasoning, turn.content, turn.tool_calls) == (thought, content, calls)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("Yo<|return|>", "does not begin with its channel: 'Yo'"),
        (f"{THOUGHT}So.", "ends on the channel analysis"),
        (f"{THOUGHT}So.<|return|>", "ends on the channel analysis"),
        (f"{THOUGHT}So.{NEXT}{THOUGHT}So.{NEXT}{FINAL}Yo<|return|>", "ends on the channel final, "),
        (f"{FINAL}Yo<|end|><|start|>user<|message|>Hi", r"<\|end\|> inside a message"),
        (f"{FINAL}Yo{NEXT}{FINAL}Yo<|return|>", "1 more messages before it"),
        (f"{FINAL}Yo{NEXT}{OWN}<|call|>", "other messages before a tool call"),
        (f"{THOUGHT}So.{NEXT}<|channel|>commentary<|message|>Yo<|return|>", "channel commentary"),
        ("<|channel|>thought<|message|>So.<|return|>", "unknown channel 'thought'"),
        (f"{OWN.replace('commentary', 'analysis')}<|call|>", "on the channel analysis"),
        (f"{OWN.replace('functions.look', 'python')}<|call|>", "does not begin with its header"),
        (f"{OWN.replace('look', 'peek')}<|call|>", "unknown tool 'peek'"),
        (f"{OWN.replace('2', 'two')}<|call|>", "look's arguments is not JSON"),
        (f"{OWN.replace('2', '1.5')}<|call|>", "n of look is not"),
        (f" to=functions.look{OWN}<|call|>", "two recipients"),
        (f"{OWN}<|return|>", r"a tool call ends with <\|return\|>"),
        (f"{FINAL}Yo<|call|>", r"<\|call\|> without a tool call"),
    ],
)
def test_any_other_turn_is_a_fault_with_its_reason(chat: Chat, said: str, reason: str) -> None:
    turn = chat.parse(asked(LOOK), chat.text_ids(said))
    assert re.search(reason, turn.error), turn.error


def test_a_template_may_write_calls_as_models_do(tmp_path: Path) -> None:
    text = (TEMPLATES / "gptoss.jinja").read_text()
    for theirs, own in [
        ('"<|start|>assistant to="', '"<|start|>assistant<|channel|>commentary to="'),
        ('+ "<|channel|>commentary " }}', '+ " <|constrain|>" }}'),
    ]:
        assert text.count(theirs) == 1
        text = text.replace(theirs, own)
    chat = Chat.load(write_folder(tmp_path, text, "bytes"))
    ids = chat.turn_ids(asked(LOOK), THINK_CALL)
    assert chat.decode(ids) == f"{THOUGHT}I look.{NEXT}{OWN}<|call|>"
    assert chat.parse(asked(LOOK), ids).message() == THINK_CALL
    assert trained(chat, [ASK, THINK_CALL, FOUND, SAY]) == (
        f"{USER}[[{THOUGHT}I look.{NEXT}{OWN}<|call|>]]{RESULT}[[{FINAL}Yo<|return|>]]"
    )


def test_a_call_where_there_are_no_tools_is_a_fault(chat: Chat) -> None:
    assert "unknown tool 'look'" in chat.parse(asked(), chat.text_ids(f"{OWN}<|call|>")).error


def test_a_thought_is_ended_or_goes_on_at_a_budget(chat: Chat) -> None:
    problem = asked(thinking=True)
    assert chat.may_think(problem)
    assert chat.may_think(asked())
    assert not chat.may_think(asked(thinking=False))
    assert chat.thought_end_ids == tuple(chat.text_ids("<|end|>"))
    begun = chat.text_ids(f"{THOUGHT}well")
    for said, is_open in [([], None), (begun[:1], None), (begun, True)]:
        assert chat.open_thought(problem, said) is is_open
    assert chat.open_thought(problem, chat.text_ids(f"{FINAL}Yo")) is False
    ended = [*begun, *chat.thought_closing_ids(begun)]
    assert chat.decode(ended) == f"{THOUGHT}well{NEXT}"
    assert chat.open_thought(problem, ended) is False
    turn = chat.parse(problem, [*ended, *chat.text_ids(f"{FINAL}Yo<|return|>")])
    assert (turn.reasoning, turn.content, turn.error) == ("well", "Yo", "")


@pytest.mark.parametrize(("said", "is_cut"), [(f"{THOUGHT}well", True), (f"{FINAL}Yo", False)])
def test_a_thought_that_the_budget_cut_off_is_no_answer(
    chat: Chat, said: str, is_cut: bool
) -> None:
    turn = chat.parse(asked(), chat.text_ids(said)).message()
    assert is_cut_in_thought(Transcript(asked(), (ASK, turn), Status.TRUNCATED, 9)) is is_cut


def test_notes_say_what_is_the_template_s_own(chat: Chat) -> None:
    notes = "\n".join(chat.notes())
    assert "`reasoning_effort`: here it is always the template's own" in notes
    assert "trained without one, the last one with <|return|>" in notes
