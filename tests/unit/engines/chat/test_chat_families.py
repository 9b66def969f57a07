"""Chat on templates of other families, and templates that cannot be used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engines.chat import Chat
from engines.chat.chat_folder import write_stops
from engines.types import Message, ToolCall
from infra.errors import InputError
from tests.parts.chat_parts import (
    LLAMA,
    LLAMA_TOKENS,
    NOT_A_PREFIX,
    QWEN3,
    QWEN_TOKENS,
    SEARCH,
    chat_folder,
    problem,
    random_base,
)

pytestmark = pytest.mark.unit

CALL = Message("assistant", "", tool_calls=(ToolCall("search", {"q": "ant", "n": 2}),))
CALL_TEXT = '<tool_call>\n{"name": "search", "arguments": {"q": "ant", "n": 2}}\n</tool_call>'
FOUND = Message("tool", "color red")
ANSWER = Message("assistant", "red")


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Chat:
    return Chat.load(
        chat_folder(tmp_path_factory.mktemp("qwen"), QWEN3, QWEN_TOKENS, "<|endoftext|>")
    )


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Chat:
    return Chat.load(chat_folder(tmp_path_factory.mktemp("llama"), LLAMA, LLAMA_TOKENS, "<|eot|>"))


def trained(chat: Chat, turns: list[Message], **kind: bool) -> str:
    tokens, mask = chat.training_ids(problem(**kind), turns)
    return chat.decode([t for t, m in zip(tokens, mask, strict=True) if m])


def test_the_turns_own_end_token_stops_generation_though_the_folder_names_another(qwen: Chat):
    assert {qwen.decode([i]) for i in qwen.stop_token_ids} == {"<|im_end|>", "<|endoftext|>"}


def test_the_line_feed_after_a_turns_end_is_not_trained(qwen: Chat):
    said = Message("assistant", "42", reasoning="2+0=2")
    text = trained(qwen, [said], thinking=True)
    assert text == "<think>\n2+0=2\n</think>\n\n42<|im_end|>"


def test_what_a_template_adds_to_a_thought_is_taken_away_when_parsed(qwen: Chat):
    said = Message("assistant", "42", reasoning="2+0=2")
    tokens = qwen._encode("<think>\n2+0=2\n</think>\n\n42<|im_end|>")
    assert qwen.parse(problem(thinking=True), tokens).message() == said


def test_a_tool_conversation_continues_where_the_engine_stopped(qwen: Chat):
    lookup = problem("color of ant", tools=(SEARCH,))
    said = qwen._encode(f"{CALL_TEXT}<|im_end|>")
    assert qwen.parse(lookup, said).message() == CALL
    more = qwen.continuation_ids(lookup, [CALL], [FOUND], said[-1])
    assert qwen.decode(more) == (
        "\n<|im_start|>user\n<tool_response>\ncolor red\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    tokens, mask = qwen.training_ids(lookup, [CALL, FOUND, ANSWER])
    end = qwen._encode("red<|im_end|>")
    assert tokens == qwen.prompt_ids(lookup) + said + more + end
    assert sum(mask) == len(said) + len(end)


@pytest.mark.parametrize("thinking", [False, True])
def test_a_user_goes_on_after_a_turn_whose_thought_the_template_would_drop(
    qwen: Chat, thinking: bool
):
    """The turn keeps its tokens; the template's own rendering is the same but for the thought."""
    asked = problem(thinking=thinking)
    said = Message("assistant", "42", reasoning="2+0=2" if thinking else None)
    more = qwen.decode(qwen.continuation_ids(asked, [said], [Message("user", "sure?")], None))
    empty = "" if thinking else "<think>\n\n</think>\n\n"
    assert more == (
        f"<|im_end|>\n<|im_start|>user\nsure?<|im_end|>\n<|im_start|>assistant\n{empty}"
    )
    mixed = [FOUND, Message("user", "sure?")]
    more = qwen.decode(qwen.continuation_ids(asked, [CALL], mixed, None))
    assert more.startswith("<|im_end|>\n<|im_start|>user\n<tool_response>\ncolor red")
    assert more.endswith(f"user\nsure?<|im_end|>\n<|im_start|>assistant\n{empty}")


def test_a_turn_that_somebody_else_wrote_has_its_stop_token(qwen: Chat, llama: Chat):
    assert qwen.decode(qwen.turn_ids(problem(), ANSWER)).endswith("red<|im_end|>")
    assert llama.decode(llama.turn_ids(problem(), ANSWER)) == "red<|eot|>"


def test_without_its_stop_token_a_turn_is_closed_before_it_goes_on(qwen: Chat):
    lookup = problem("color of ant", tools=(SEARCH,))
    more = qwen.continuation_ids(lookup, [CALL], [FOUND], None)
    assert qwen.decode(more).startswith("<|im_end|>\n<|im_start|>user")


def test_thinking_tool_turns_keep_their_thoughts(qwen: Chat):
    lookup = problem("color of ant", tools=(SEARCH,), thinking=True)
    turns = [
        Message("assistant", "", reasoning="look", tool_calls=CALL.tool_calls),
        FOUND,
        Message("assistant", "red", reasoning="seen"),
    ]
    tokens, _ = qwen.training_ids(lookup, turns)
    whole = qwen._pieces.template.render(
        [*lookup.messages, *turns], tools=lookup.tools, thinking=True
    )
    assert tokens == qwen._encode(whole.removesuffix("\n"))


def test_a_template_that_forgets_a_thought_when_the_user_answers_is_refused(qwen: Chat):
    turns = [
        Message("assistant", "42", reasoning="2+0=2"),
        Message("user", "sure?"),
        Message("assistant", "42", reasoning="yes"),
    ]
    with pytest.raises(InputError, match=r"tokenizer_config\.json: .* does not keep the prefix"):
        qwen.training_ids(problem(thinking=True), turns)


def test_a_template_that_changes_earlier_turns_is_refused_with_the_place(tmp_path: Path):
    folder = chat_folder(tmp_path, NOT_A_PREFIX, LLAMA_TOKENS, "<|eot|>")
    with pytest.raises(InputError, match=r"does not keep the prefix.*At character .*left out"):
        Chat.load(folder).training_ids(problem(), [ANSWER])


def test_a_template_without_thinking_or_tools_serves_plain_chat(llama: Chat):
    assert not llama.is_thinking_switchable
    assert not llama.can_call_tools
    assert trained(llama, [ANSWER]) == "red<|eot|>"
    turn = llama.parse(problem(), llama._encode("red<|eot|>"))
    assert (turn.content, turn.error) == ("red", "")


def test_a_template_that_cannot_call_tools_is_refused_for_a_problem_with_tools(llama: Chat):
    with pytest.raises(InputError, match="writes no tool calls"):
        llama.prompt_ids(problem(tools=(SEARCH,)))


def test_a_template_that_drops_reasoning_is_refused(llama: Chat):
    with pytest.raises(InputError, match="drops the turn's thought"):
        llama.training_ids(problem(thinking=True), [Message("assistant", "4", reasoning="hm 2+2")])


def test_a_template_that_does_not_compile_is_refused_by_name(tmp_path: Path):
    folder = chat_folder(tmp_path, "{% for %}", LLAMA_TOKENS, "<|eot|>")
    with pytest.raises(InputError, match=r"tokenizer_config\.json: .* does not compile"):
        Chat.load(folder)


def test_stop_tokens_are_listed_where_other_programs_look(tmp_path: Path) -> None:
    """A pretrained base names its own end token; its chat template ends turns with another."""
    folder = chat_folder(tmp_path, QWEN3, QWEN_TOKENS, "<|endoftext|>")
    ids = {token: Chat.load(folder).vocabulary[token] for token in QWEN_TOKENS}
    end, turn_end = ids["<|endoftext|>"], ids["<|im_end|>"]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": end, "top_k": 20}))
    (folder / "config.json").write_text(json.dumps({"eos_token_id": [end], "vocab_size": 300}))
    before = Chat.load(folder).stop_token_ids
    write_stops(folder, before)
    generation = json.loads((folder / "generation_config.json").read_text())
    assert generation == {"eos_token_id": [end, turn_end], "top_k": 20}
    config = json.loads((folder / "config.json").read_text())
    assert config == {"eos_token_id": [end, turn_end], "vocab_size": 300}
    assert Chat.load(folder).stop_token_ids == before


def test_files_that_list_every_stop_token_stay_as_they_are(tmp_path: Path) -> None:
    folder = random_base(tmp_path)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    write_stops(folder, Chat.load(folder).stop_token_ids)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == files
