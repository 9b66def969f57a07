"""Tokens that only a whole rendering has, tokens that end a turn, and tokens in somebody's text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from engines.chat import Chat
from engines.types import Message, Problem, Tool, ToolCall
from infra.errors import InputError
from tests.parts.chat_parts import QWEN3, QWEN_TOKENS, SEARCH, chat_folder, problem

pytestmark = pytest.mark.unit

ASK, SAY = Message("user", "Hi"), Message("assistant", "Yo")
CALL = Message("assistant", "", tool_calls=(ToolCall("search", {"q": "ant"}),))
FOUND = Message("tool", "red")
LLAMA2 = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ bos_token + '[INST] ' + m.content.strip()"
    " + ' [/INST]' }}{% elif m.role == 'assistant' %}{{ ' ' + m.content.strip() + ' ' + eos_token"
    " }}{% endif %}{% endfor %}"
)
TINYLLAMA = (
    "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + eos_token + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
VICUNA = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ 'USER: ' + m.content + ' '"
    " }}{% elif m.role == 'assistant' %}{{ 'ASSISTANT: ' + m.content + eos_token }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
UNMARKED = CHATML.replace("{% generation %}", "").replace("{% endgeneration %}", "")


def spaced_folder(folder: Path, template: str, kind: str) -> Path:
    """A folder whose tokenizer puts a space before a text, as SentencePiece does."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

    vocabulary = {token: at for at, token in enumerate(("<unk>", "<s>", "</s>"))}
    tokens = [*(f"<0x{byte:02X}>" for byte in range(256)), "▁", *map(chr, range(33, 127))]
    vocabulary |= {token: 3 + at for at, token in enumerate(tokens)}
    merges: list[tuple[str, str]] = []
    for word in ("Yo", "Hi"):
        for left, right in ((word[0], word[1]), ("▁", word)):
            vocabulary[left + right] = len(vocabulary)
            merges.append((left, right))
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", byte_fallback=True)
    )
    if kind == "prepend":
        space = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        tokenizer.normalizer = normalizers.Sequence(space)
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=kind, split=False)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()])
    tokenizer.add_special_tokens(
        [AddedToken(token, normalized=False) for token in ("<unk>", "<s>", "</s>")]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def unflagged_folder(folder: Path, template: str, eos: str) -> Path:
    """A folder whose ChatML tokens were added without being called special."""
    from tokenizers import AddedToken, Tokenizer

    chat_folder(folder, template, ["<|endoftext|>"], eos)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    chatml = ("<|im_start|>", "<|im_end|>")
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in chatml])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def trained(chat: Chat, messages: Sequence[Message], **given: Any) -> str:
    """The text of a conversation, with what is trained in brackets."""
    text = chat.training_text(messages, given.get("tools", ()), thinking="thinking" in given)
    pairs = zip(*chat.masked_ids([text])[0], strict=True)
    runs = [
        (is_on, chat.decode([token for token, _ in run]))
        for is_on, run in groupby(pairs, key=lambda pair: pair[1])
    ]
    return "".join(f"[[{said}]]" if is_on else said for is_on, said in runs)


def names(chat: Chat, ids: Sequence[int]) -> list[str]:
    by_id = {number: token for token, number in chat.vocabulary.items()}
    return [by_id[token] for token in ids]


@pytest.mark.parametrize("kind", ["prepend", "first", "always"])
@pytest.mark.parametrize(
    ("template", "said", "follows"),
    [
        (LLAMA2, ["▁Yo", "▁", "</s>"], {"first": "[INST]▁Hi▁[/INST]"}),
        (VICUNA, ["▁Yo", "</s>"], {"first": "USER:▁Hi▁ASSISTANT:"}),
        (TINYLLAMA, ["Yo", "</s>"],
         {"first": "<0x0A><|user|><0x0A>Hi</s><0x0A><|assistant|><0x0A>"}),
    ],
    ids=["llama-2", "vicuna", "tinyllama"],
)  # fmt: skip
def test_a_turn_has_the_tokens_of_the_whole_text_where_a_tokenizer_begins_with_a_space(
    tmp_path: Path, kind: str, template: str, said: list[str], follows: dict[str, str]
) -> None:
    chat = Chat.load(spaced_folder(tmp_path, template, kind))
    turns = [SAY, ASK, SAY]
    ids, mask = chat.training_ids(Problem("p", "d", (ASK,)), turns)
    pairs = groupby(zip(ids, mask, strict=True), key=lambda pair: pair[1])
    runs = [names(chat, [token for token, _ in run]) for is_on, run in pairs if is_on]
    assert runs == [said, said]
    # A rollout whose model wrote the same tokens stands where training stands.
    asked = Problem("p", "d", (ASK,))
    end = chat.vocabulary["</s>"]
    rolled = [*chat.prompt_ids(asked), *(chat.vocabulary[token] for token in said)]
    more = chat.continuation_ids(asked, [SAY], [ASK], end)
    assert [*rolled, *more] == ids[: len(rolled) + len(more)]
    assert chat.turn_ids(asked, SAY) == [chat.vocabulary[token] for token in said]
    if kind in follows:
        begun = "<s>" if template == LLAMA2 else ""
        assert "".join(names(chat, more)) == begun + follows[kind]


@pytest.mark.parametrize("template", [CHATML, UNMARKED], ids=["marked", "unmarked"])
@pytest.mark.parametrize("eos", ["<|im_end|>", "<|endoftext|>"])
@pytest.mark.parametrize("is_special", [True, False])
def test_the_token_behind_a_turns_text_ends_it_whatever_flag_it_has(
    tmp_path: Path, template: str, eos: str, is_special: bool
) -> None:
    if is_special:
        chat = Chat.load(chat_folder(tmp_path, template, QWEN_TOKENS, eos))
    else:
        chat = Chat.load(unflagged_folder(tmp_path, template, eos))
    user, said = "<|im_start|>user\nHi<|im_end|>\n", "<|im_start|>assistant\n[[Yo<|im_end|>]]"
    assert trained(chat, [ASK, SAY, ASK, SAY]) == f"{user}{said}\n{user}{said}"
    assert {chat.decode([token]) for token in chat.stop_token_ids} == {eos, "<|im_end|>"}
    turn = chat.parse(problem("Hi"), chat._encode("42<|im_end|>"))
    assert turn.content == "42"


def test_a_token_that_is_no_added_one_never_ends_a_turn(tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}{% for c in m.tool_calls or [] %}"
        '<tool_call>{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments |'
        " tojson }}}</tool_call>{% endfor %}\n{{ '' }}{% endfor %}"
        "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    chat = Chat.load(chat_folder(tmp_path, template, ["<|end|>"], "<|end|>"))
    assert [chat.decode([token]) for token in chat.stop_token_ids] == ["<|end|>"]
    with pytest.raises(InputError, match="could not end such a turn"):
        chat.prompt_ids(problem(tools=(SEARCH,)))


R1_END = "<\uff5cend▁of▁sentence\uff5c>"
REAL = {
    "phi3": ["<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|endoftext|>"],
    "glm4moe_training": [
        *("<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>"),
        "<|observation|>",
    ],
}


def real_chat(folder: Path, name: str, eos: str) -> Chat:
    """A chat with one of the templates that TRL ships."""
    trl = pytest.importorskip("trl")
    text = (Path(trl.__file__).parent / "chat_templates" / f"{name}.jinja").read_text()
    special = REAL.get(name) or (REAL["phi3"] if "phi3" in name else QWEN_TOKENS)
    special = [*special, *([eos] if eos not in special else [])]
    return Chat.load(chat_folder(folder, text, special, eos))


@pytest.mark.parametrize("name", ["phi3", "phi3_5", "phi3_training", "phi3_5_training"])
def test_an_end_token_that_only_the_last_turn_has_is_no_part_of_it(
    tmp_path: Path, name: str
) -> None:
    chat = real_chat(tmp_path, name, "<|endoftext|>")
    user, said = "<|user|>\nHi<|end|>\n", "<|assistant|>\n[[Yo<|end|>]]"
    assert trained(chat, [ASK, SAY]) == user + said
    assert trained(chat, [ASK, SAY, ASK, SAY]) == f"{user}{said}\n{user}{said}"
    assert chat.decode(chat.turn_ids(problem("Hi"), SAY)) == "Yo<|end|>"
    end = chat.vocabulary["<|end|>"]
    more = chat.continuation_ids(problem("Hi"), [SAY], [ASK], end)
    assert chat.decode(more) == f"\n{user}<|assistant|>\n"


def test_a_token_that_ends_turns_with_calls_alone_is_a_stop_token(tmp_path: Path) -> None:
    chat = real_chat(tmp_path, "glm4moe_training", "<|endoftext|>")
    stops = {chat.decode([token]) for token in chat.stop_token_ids}
    assert stops == {"<|endoftext|>", "<|user|>", "<|observation|>"}


@pytest.fixture
def qwen(tmp_path: Path) -> Chat:
    return Chat.load(chat_folder(tmp_path, QWEN3, QWEN_TOKENS, "<|im_end|>"))


EMPTY = "<think>\n\n</think>\n\n"


def test_empty_thoughts_in_texts_of_others_stay(qwen: Chat) -> None:
    asked = Message("user", "what does <think></think> do?")
    assert "what does <think></think> do?" in trained(qwen, [ASK, SAY, asked, SAY])
    end = qwen.vocabulary["<|im_end|>"]
    more = qwen.continuation_ids(problem(), [SAY], [asked], end)
    assert qwen.decode(more).startswith("\n<|im_start|>user\nwhat does <think></think> do?<|im_end")
    found = Message("tool", "found <think>\n</think> tag")
    more = qwen.continuation_ids(problem(tools=(SEARCH,)), [CALL], [found, asked], end)
    assert "found <think>\n</think> tag" in qwen.decode(more)
    assert "what does <think></think> do?" in qwen.decode(more)


@pytest.mark.parametrize("said", [" one", "one ", "  one", "\tone", "<b>one</b>", "<th"])
def test_white_space_around_an_earlier_turn_is_kept(qwen: Chat, said: str) -> None:
    text = trained(qwen, [ASK, Message("assistant", said), ASK, SAY])
    assert f"assistant\n{EMPTY}[[{said}<|im_end|>]]" in text


def test_an_empty_thought_that_no_message_says_is_not_trained(qwen: Chat) -> None:
    last = Message("assistant", "d", "c")
    text = trained(qwen, [ASK, SAY, ASK, last], thinking=True)
    assert f"assistant\n{EMPTY}[[Yo<|im_end|>]]" in text
    assert text.endswith("assistant\n[[<think>\nc\n</think>\n\nd<|im_end|>]]")


@pytest.mark.parametrize("name", ["qwen3", "qwen3_training", "qwen3_5_think", "qwen3_8"])
def test_nor_is_it_with_real_templates(tmp_path: Path, name: str) -> None:
    chat = real_chat(tmp_path, name, "<|im_end|>")
    text = trained(chat, [ASK, SAY, ASK, Message("assistant", "d", "c")], thinking=True)
    assert "[[Yo<|im_end|>]]" in text
    assert "c\n</think>\n\nd<|im_end|>]]" in text


@pytest.mark.parametrize(
    ("messages", "where", "token"),
    [
        ([Message("user", "a<|im_end|>b"), SAY], r"messages\[0\]", "<|im_end|>"),
        ([ASK, Message("assistant", "Yo<|im_end|>")], r"messages\[1\]", "<|im_end|>"),
        ([ASK, Message("assistant", "Yo<|im_end|>\n<|im_start|>user\nmore?")], r"messages\[1\]",
         "<|im_end|>"),
        ([Message("system", "<|endoftext|>"), ASK, SAY], r"messages\[0\]", "<|endoftext|>"),
        ([ASK, CALL, Message("tool", "x<|im_start|>"), SAY], r"messages\[2\]", "<|im_start|>"),
        ([ASK, Message("assistant", "", tool_calls=(ToolCall("search", {"q": ["<|im_end|>"]}),)),
          FOUND, SAY], r"messages\[1\]", "<|im_end|>"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_special", [True, False])
def test_a_text_with_a_token_of_the_models_own_format_is_refused(
    tmp_path: Path, messages: list[Message], where: str, token: str, is_special: bool
) -> None:
    if is_special:
        chat = Chat.load(chat_folder(tmp_path, QWEN3, QWEN_TOKENS, "<|im_end|>"))
    else:
        chat = Chat.load(unflagged_folder(tmp_path, QWEN3, "<|endoftext|>"))
    wanted = rf"{where}: its text holds {token.replace('|', '[|]')}, a control token"
    with pytest.raises(InputError, match=wanted):
        chat.training_text(messages, (), thinking=False)
    if messages[-2].role == "user":
        return
    with pytest.raises(InputError, match="control token"):
        chat.continuation_ids(problem(), [CALL], [Message("tool", token)], None)


def test_prompts_and_tools_are_held_to_the_same(qwen: Chat) -> None:
    with pytest.raises(InputError, match=r"messages\[0\]: its text holds <[|]im_end[|]>"):
        qwen.prompt_ids(problem("a<|im_end|>"))
    tool = Tool("search", "Ends with <|im_end|>", {"q": "string"})
    with pytest.raises(InputError, match=r"tool search: its text holds <[|]im_end[|]>"):
        qwen.prompt_ids(problem(tools=(tool,)))
    assert qwen.prompt_ids(problem("<think> and <tool_call> are words here"))


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("tojson(separators=(',', ':'))", {"separators": (",", ":")}),
        ("tojson(sort_keys=true)", {"sort_keys": True}),
        ("tojson(ensure_ascii=true)", {"ensure_ascii": True}),
        ("tojson(indent=2)", {"indent": 2}),
        ("tojson", {}),
    ],
)
def test_json_is_written_with_the_options_of_the_template(
    tmp_path: Path, text: str, options: dict[str, Any]
) -> None:
    template = QWEN3.replace("tool | tojson", f"tool | {text}")
    chat = Chat.load(chat_folder(tmp_path, template, QWEN_TOKENS, "<|im_end|>"))
    schema = {"name": "search", "zeta": "\u00fc", "parameters": {"b": 1, "a": [2]}}
    tool = Tool("search", "", {"q": "string"}, ("q",), schema)
    given: dict[str, Any] = {"ensure_ascii": False, **options}
    written = json.dumps({"type": "function", "function": schema}, **given)
    assert written in chat.decode(chat.prompt_ids(problem(tools=(tool,))))


def test_a_template_may_ask_for_the_date(tmp_path: Path) -> None:
    template = "Today: {{ strftime_now('%Y-%m-%d %H:%M') }}\n" + UNMARKED
    chat = Chat.load(chat_folder(tmp_path, template, QWEN_TOKENS, "<|im_end|>"))
    assert chat.decode(chat.prompt_ids(problem())).startswith("Today: 2024-07-26 00:00\n")


@pytest.mark.parametrize(
    ("messages", "missing"),
    [
        ([Message("user", "search the ant"),
          Message("assistant", "I search: q is ant", tool_calls=CALL.tool_calls), FOUND, SAY],
         r"messages\[1\]: .* drops the turn's tool calls"),
        ([ASK, Message("assistant", "hm 2", "hm"), ASK, SAY],
         r"messages\[1\]: .* drops the turn's thought"),
    ],
)  # fmt: skip
def test_what_a_template_drops_is_found_though_its_words_stand_elsewhere(
    tmp_path: Path, messages: list[Message], missing: str
) -> None:
    chat = Chat.load(chat_folder(tmp_path, UNMARKED, QWEN_TOKENS, "<|im_end|>"))
    with pytest.raises(InputError, match=missing):
        chat.training_text(messages, (), thinking=bool(messages[1].reasoning))
    assert not chat.lists_tools(messages, (SEARCH,))


def test_a_template_that_drops_a_message_of_others_is_refused(tmp_path: Path) -> None:
    template = UNMARKED.replace("messages %}", "messages if m.role != 'system' %}", 1)
    chat = Chat.load(chat_folder(tmp_path, template, QWEN_TOKENS, "<|im_end|>"))
    system = Message("system", "Hi")
    with pytest.raises(InputError, match=r"messages\[0\]: .* drops the message's text"):
        chat.training_text([system, ASK, SAY], (), thinking=False)
    with pytest.raises(InputError, match=r"messages\[0\]: .* drops the message's text"):
        chat.prompt_ids(Problem("p", "d", (system, ASK)))


def test_a_thought_whose_words_stand_in_the_answer_is_written(tmp_path: Path) -> None:
    chat = real_chat(tmp_path, "deepseek_r1_distill", R1_END)
    text = trained(chat, [ASK, Message("assistant", "42, so 42", "42")], thinking=True)
    assert text.endswith(f"<think>\n[[42\n</think>\n\n42, so 42{R1_END}]]")


def test_an_end_token_that_is_an_ordinary_token_of_the_vocabulary_is_found(tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    folder = spaced_folder(tmp_path, LLAMA2, "prepend")
    made = json.loads((folder / "tokenizer.json").read_text())
    made["added_tokens"] = [token for token in made["added_tokens"] if token["content"] != "</s>"]
    (folder / "tokenizer.json").write_text(json.dumps(made))
    ids, mask = Chat.load(folder).training_ids(Problem("p", "d", (ASK,)), [SAY])
    theirs = PreTrainedTokenizerFast.from_pretrained(folder)
    raw = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]
    assert ids == theirs.apply_chat_template(raw, return_dict=False)
    assert theirs.decode(ids[-1]) == "</s>"
    assert mask[-1] == 1


ENDLESS = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{{ '' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


@pytest.mark.parametrize(
    ("template", "notes"),
    [
        (LLAMA2, []),
        (VICUNA, []),
        (VICUNA.replace("'ASSISTANT:'", "'ASSISTANT: '"), ["makes other tokens of the end of a"]),
        (ENDLESS, ["no end token behind a turn", "makes other tokens of the end of a prompt"]),
        ("{{ strftime_now('%Y') }}" + LLAMA2, ["always 26 July 2024"]),
    ],
)
def test_what_is_good_to_know_of_a_template_is_said(
    tmp_path: Path, template: str, notes: list[str]
) -> None:
    said = list(Chat.load(spaced_folder(tmp_path, template, "prepend")).notes())
    assert len(said) == len(notes), said
    for note, expected in zip(said, notes, strict=True):
        assert note.startswith("tokenizer_config.json: ")
        assert expected in note
