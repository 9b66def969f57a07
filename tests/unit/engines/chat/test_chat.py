"""Chat on the base's own format: prompts, masks, continuations, parsed turns."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from engines.chat import Chat
from engines.types import Message, ToolCall
from infra.errors import InputError
from tests.parts.chat_parts import SEARCH, problem, random_base

pytestmark = pytest.mark.unit

CALL = Message("assistant", "", tool_calls=(ToolCall("search", {"q": "ant"}),))
FOUND = Message("tool", "color red")
ANSWER = Message("assistant", "red")
LOOKUP = problem("color of ant", tools=(SEARCH,))
CALL_TEXT = "<tool_call>search<arg_key>q</arg_key><arg_value>ant</arg_value></tool_call>"


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Chat:
    return Chat.load(random_base(tmp_path_factory.mktemp("base")))


def ids(chat: Chat, text: str) -> list[int]:
    return chat._encode(text)


def trained(chat: Chat, tokens: list[int], mask: list[int]) -> list[str]:
    """The runs of trained tokens, as text."""
    runs: list[list[int]] = []
    for i, (token, m) in enumerate(zip(tokens, mask, strict=True)):
        if m and (i == 0 or not mask[i - 1]):
            runs.append([])
        if m:
            runs[-1].append(token)
    return [chat.decode(run) for run in runs]


def test_prompt_leaves_the_thought_to_a_thinking_model_and_closes_it_otherwise(chat: Chat):
    assert chat.decode(chat.prompt_ids(problem(thinking=True))) == "<|user|>12+30<|assistant|>"
    assert chat.decode(chat.prompt_ids(problem())) == "<|user|>12+30<|assistant|><think></think>"
    assert chat.is_thinking_switchable


def test_a_prompt_with_tools_names_them_only(chat: Chat):
    assert chat.decode(chat.prompt_ids(LOOKUP)).startswith("<|system|>search<|user|>color of ant")


def test_only_what_the_assistant_writes_is_trained_with_its_stop_token(chat: Chat):
    tokens, mask = chat.training_ids(
        problem(thinking=True), [Message("assistant", "\\boxed{42}", reasoning="2+0=2")]
    )
    assert trained(chat, tokens, mask) == ["<think>2+0=2</think>\\boxed{42}<|endoftext|>"]
    assert chat.decode(tokens).count("<|endoftext|>") == 1


def test_a_tool_turn_is_trained_up_to_the_next_roles_token(chat: Chat):
    tokens, mask = chat.training_ids(LOOKUP, [CALL, FOUND, ANSWER])
    assert trained(chat, tokens, mask) == [f"{CALL_TEXT}<|observation|>", "red<|endoftext|>"]
    assert chat.decode(tokens).count("<|observation|>") == 1


def test_tokens_of_a_conversation_are_those_of_its_whole_rendering(chat: Chat):
    turns = [CALL, FOUND, ANSWER]
    tokens, _ = chat.training_ids(LOOKUP, turns)
    whole = chat._pieces.template.render([*LOOKUP.messages, *turns], tools=LOOKUP.tools)
    assert tokens == ids(chat, whole)


def test_rollout_and_training_see_the_same_tokens(chat: Chat):
    tokens, _ = chat.training_ids(LOOKUP, [CALL, FOUND, ANSWER])
    said = ids(chat, f"{CALL_TEXT}<|observation|>")
    rolled = chat.prompt_ids(LOOKUP) + said
    rolled += chat.continuation_ids(LOOKUP, [CALL], [FOUND], said[-1])
    rolled += ids(chat, "red<|endoftext|>")
    assert rolled == tokens


def test_continuation_repeats_no_stop_token_and_adds_a_missing_one(chat: Chat):
    stop = ids(chat, "<|observation|>")[0]
    after_stop = chat.continuation_ids(LOOKUP, [CALL], [FOUND], stop)
    assert chat.decode(after_stop) == "color red<|assistant|><think></think>"
    assert chat.continuation_ids(LOOKUP, [CALL], [FOUND], None) == [stop, *after_stop]


def test_a_user_may_answer_a_turn(chat: Chat):
    turns = [ANSWER, Message("user", "12+30"), Message("assistant", "42")]
    tokens, mask = chat.training_ids(problem("color of ant"), turns)
    assert trained(chat, tokens, mask) == ["red<|endoftext|>", "42<|endoftext|>"]
    end = ids(chat, "<|endoftext|>")[0]
    more = chat.continuation_ids(problem(), turns[:1], turns[1:2], end)
    assert chat.decode(more) == "<|user|>12+30<|assistant|><think></think>"


@pytest.mark.parametrize("text", ["", "naïve ∑ 日本\n\t😀", "<b>&amp;</b>", "XYZ 012 words start "])
def test_every_text_survives_the_round_trip(chat: Chat, text: str):
    assert chat.decode(ids(chat, text)) == text


def test_a_thinking_turn_is_parsed_into_reasoning_and_content(chat: Chat):
    said = ids(chat, "<think>2+0=2</think>\\boxed{42}<|endoftext|>")
    turn = chat.parse(problem(thinking=True), said)
    assert (turn.reasoning, turn.content, turn.error) == ("2+0=2", "\\boxed{42}", "")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("42", "does not start with its thought"),
        ("<think>2+0", "1 <think> and 0 </think>"),
        ("<think><think>2</think>42", "2 <think> and 1 </think>"),
        ("<think>2</think>4</think>2", "1 <think> and 2 </think>"),
        ("4<think>2</think>", "does not start with its thought"),
    ],
)
def test_a_broken_thought_is_an_error(chat: Chat, text: str, reason: str):
    turn = chat.parse(problem(thinking=True), ids(chat, f"{text}<|endoftext|>"))
    assert reason in turn.error
    assert turn.content == text


def test_a_thought_where_thinking_is_off_is_an_error(chat: Chat):
    turn = chat.parse(problem(), ids(chat, "<think>2</think>42<|endoftext|>"))
    assert "without thinking" in turn.error


def test_a_tool_call_is_parsed(chat: Chat):
    turn = chat.parse(LOOKUP, ids(chat, f"{CALL_TEXT}<|observation|>"))
    assert turn.message() == CALL
    assert turn.error == ""


def test_a_turn_must_end_with_the_token_of_who_comes_next(chat: Chat):
    called = chat.parse(LOOKUP, ids(chat, f"{CALL_TEXT}<|endoftext|>"))
    assert called.error == "a tool call ends with <|endoftext|>"
    answered = chat.parse(LOOKUP, ids(chat, "red<|observation|>"))
    assert answered.error == "<|observation|> without a tool call"


def test_a_turn_without_its_stop_token_is_parsed_as_far_as_it_came(chat: Chat):
    turn = chat.parse(LOOKUP, ids(chat, "red"))
    assert (turn.content, turn.error) == ("red", "")


def test_a_thought_in_a_demonstration_without_thinking_is_refused(chat: Chat):
    with pytest.raises(InputError, match="thinking off, but a turn has reasoning"):
        chat.training_ids(problem(), [Message("assistant", "42", reasoning="2+0=2")])


@pytest.mark.parametrize("turns", [[], [FOUND], [CALL, FOUND], [ANSWER, ANSWER]])
def test_turns_that_are_no_exchange_are_refused(chat: Chat, turns: list[Message]):
    with pytest.raises(InputError, match="turns"):
        chat.training_ids(LOOKUP, turns)


def test_chat_imports_neither_torch_nor_transformers():
    code = "import sys, engines.chat; print({'torch', 'transformers'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_folder_that_lacks_a_part_is_refused_by_name(tmp_path: Path):
    with pytest.raises(InputError, match=r"tokenizer\.json: is missing"):
        Chat.load(tmp_path)
    folder = random_base(tmp_path / "base")
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(InputError, match=r"chat_template\.jinja: is missing"):
        Chat.load(folder)
