"""Loss masks of six families' real templates, as TRL ships them, against masks made by hand.

`[[...]]` is what is trained on.
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from engines.chat import Chat
from engines.types import Message, Problem, Tool, ToolCall
from infra.errors import InputError
from tests.parts.chat_parts import chat_folder

trl = pytest.importorskip("trl")
pytestmark = pytest.mark.unit
FOLDER = Path(trl.__file__).parent / "chat_templates"
QWEN = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
LLAMA = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
GLM = [
    "<|endoftext|>", "[gMASK]", "<sop>",
    *(f"<|{role}|>" for role in ("system", "user", "assistant", "observation")),
]  # fmt: skip
DEEPSEEK = [
    *(f"<\uff5c{part}\uff5c>" for part in ("begin▁of▁sentence", "end▁of▁sentence")),
    *(f"<\uff5c{part}\uff5c>" for part in ("User", "Assistant", "tool▁sep")),
    *(
        f"<\uff5ctool▁{what}▁{edge}\uff5c>"
        for what in ("calls", "call", "outputs", "output")
        for edge in ("begin", "end")
    ),
]
GEMMA = ["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"]
SPECIAL = {"qwen": QWEN, "llama": LLAMA, "glm4": GLM, "deep": DEEPSEEK, "gemma": GEMMA}
END = {
    "qwen": "<|im_end|>",
    "llama": "<|eot_id|>",
    "glm4": "<|endoftext|>",
    "deep": "<\uff5cend▁of▁sentence\uff5c>",
    "gemma": "<end_of_turn>",
}
TOOL = Tool("look", "Looks.", {"at": "string"}, ("at",))
ASK, SAY, FOUND = Message("user", "Hi"), Message("assistant", "Yo"), Message("tool", "red")
CALL = Message("assistant", "", tool_calls=(ToolCall("look", {"at": "ant"}),))
THINK = Message("assistant", "Yo", "hm")
THINK_CALL = Message("assistant", "", "hm", CALL.tool_calls)


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Chat]:
    return {}


def marked(chat: Chat, messages: list[Message], *, thinking: bool = False, **given: Any) -> str:
    text = chat.training_text(messages, given.get("tools", ()), thinking=thinking)
    tokens, mask = chat.masked_ids([text])[0]
    parts: list[str] = []
    for is_trained, run in groupby(zip(tokens, mask, strict=True), key=lambda pair: pair[1]):
        said = chat.decode([token for token, _ in run])
        parts.append(f"[[{said}]]" if is_trained else said)
    return "".join(parts)


@pytest.fixture
def chat_of(chats: dict[str, Chat], tmp_path: Path) -> Any:
    def load(name: str) -> Chat:
        if name not in chats:
            template = (FOLDER / f"{name}.jinja").read_text()
            family = next(key for key in SPECIAL if name.startswith(key))
            folder = chat_folder(tmp_path / name, template, SPECIAL[family], END[family])
            chats[name] = Chat.load(folder)
        return chats[name]

    return load


QWEN_CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "ant"}}\n</tool_call>'
QWEN_FOUND = "<|im_start|>user\n<tool_response>\nred\n</tool_response><|im_end|>\n"
QWEN_ASK, QWEN_TURN = "<|im_start|>user\nHi<|im_end|>\n", "<|im_start|>assistant\n"
EMPTY = "<think>\n\n</think>\n\n"
GLM_CALL = "<tool_call>look\n<arg_key>at</arg_key>\n<arg_value>ant</arg_value>\n</tool_call>"
GLM_FOUND = "\n<tool_response>\nred\n</tool_response>"
LLAMA_TURN = "<|start_header_id|>assistant<|end_header_id|>\n\n"
LLAMA_ASK = "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
BOS, EOS = DEEPSEEK[:2]
SEEK_ASK, SEEK_TURN = "<\uff5cUser\uff5c>Hi", "<\uff5cAssistant\uff5c>"
SEEK_CALL = (
    "<\uff5ctool▁calls▁begin\uff5c><\uff5ctool▁call▁begin\uff5c>function<\uff5ctool▁sep\uff5c>look\n"
    '```json\n{"at": "ant"}\n```<\uff5ctool▁call▁end\uff5c><\uff5ctool▁calls▁end\uff5c>'
)
SEEK_FOUND = (
    "<\uff5ctool▁outputs▁begin\uff5c><\uff5ctool▁output▁begin\uff5c>red"
    "<\uff5ctool▁output▁end\uff5c>"
)
SEEK_OVER = "<\uff5ctool▁outputs▁end\uff5c>"


@pytest.mark.parametrize(
    ("name", "messages", "thinking", "end"),
    [
        # Several turns without a thought: each is trained on, with the token that ends it.
        ("qwen2_5", [ASK, SAY, ASK, SAY], False,
         f"{QWEN_ASK}{QWEN_TURN}[[Yo<|im_end|>]]\n{QWEN_ASK}{QWEN_TURN}[[Yo<|im_end|>]]"),
        ("qwen3", [ASK, SAY, ASK, SAY], False,
         f"{QWEN_ASK}{QWEN_TURN}{EMPTY}[[Yo<|im_end|>]]\n{QWEN_ASK}{QWEN_TURN}{EMPTY}"
         "[[Yo<|im_end|>]]"),
        ("llama3", [ASK, SAY, ASK, SAY], False,
         f"<|begin_of_text|>{LLAMA_ASK}{LLAMA_TURN}[[Yo<|eot_id|>]]{LLAMA_ASK}{LLAMA_TURN}"
         "[[Yo<|eot_id|>]]"),
        ("glm4moe", [ASK, SAY, ASK, SAY], False,
         "[gMASK]<sop><|user|>\nHi/nothink<|assistant|>\n<think></think>[[\nYo<|user|>]]\n"
         "Hi/nothink<|assistant|>\n<think></think>[[\nYo<|endoftext|>]]"),
        ("deepseekv3", [ASK, SAY, ASK, SAY], False,
         f"{BOS}{SEEK_ASK}{SEEK_TURN}[[Yo{EOS}]]{SEEK_ASK}{SEEK_TURN}[[Yo{EOS}]]"),
        ("deepseek_r1_distill", [ASK, SAY, ASK, SAY], False,
         f"{BOS}{SEEK_ASK}{SEEK_TURN}[[Yo{EOS}]]{SEEK_ASK}{SEEK_TURN}[[Yo{EOS}]]"),
        # What the system says stands in the user's first turn.
        ("gemma3", [Message("system", "Be."), ASK, SAY, ASK, SAY], False,
         "<start_of_turn>user\nBe.\n\nHi<end_of_turn>\n<start_of_turn>model\n"
         "[[Yo<end_of_turn>]]\n<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n"
         "[[Yo<end_of_turn>]]"),
        # Tools: the call and its end are trained on, what came back is not.
        ("qwen2_5", [ASK, CALL, FOUND, SAY], False,
         f"{QWEN_ASK}{QWEN_TURN}[[{QWEN_CALL}<|im_end|>]]\n{QWEN_FOUND}{QWEN_TURN}"
         "[[Yo<|im_end|>]]"),
        ("qwen3", [ASK, CALL, FOUND, SAY, ASK, SAY], False,
         f"{QWEN_TURN}{EMPTY}[[{QWEN_CALL}<|im_end|>]]\n{QWEN_FOUND}{QWEN_TURN}{EMPTY}"
         f"[[Yo<|im_end|>]]\n{QWEN_ASK}{QWEN_TURN}{EMPTY}[[Yo<|im_end|>]]"),
        ("llama3_2", [ASK, CALL, FOUND, SAY], False,
         f'{LLAMA_TURN}[[{{"name": "look", "parameters": {{"at": "ant"}}}}<|eot_id|>]]'
         '<|start_header_id|>ipython<|end_header_id|>\n\n"red"<|eot_id|>'
         f"{LLAMA_TURN}[[Yo<|eot_id|>]]"),
        ("glm4moe", [ASK, CALL, FOUND, SAY], False,
         f"<|assistant|>\n<think></think>[[\n{GLM_CALL}<|observation|>]]{GLM_FOUND}"
         "<|assistant|>\n<think></think>[[\nYo<|endoftext|>]]"),
        ("deepseekv3", [ASK, CALL, FOUND, SAY], False,
         f"{BOS}{SEEK_ASK}{SEEK_TURN}[[{SEEK_CALL}{EOS}]]{SEEK_FOUND}{SEEK_OVER}[[Yo{EOS}]]"),
        # Thoughts: as the model writes them.
        ("qwen3", [ASK, THINK_CALL, FOUND, THINK], True,
         f"{QWEN_ASK}{QWEN_TURN}[[<think>\nhm\n</think>\n\n{QWEN_CALL}<|im_end|>]]\n{QWEN_FOUND}"
         f"{QWEN_TURN}[[<think>\nhm\n</think>\n\nYo<|im_end|>]]"),
        ("glm4moe", [ASK, THINK_CALL, FOUND, THINK], True,
         f"<|assistant|>[[\n<think>hm</think>\n{GLM_CALL}<|observation|>]]{GLM_FOUND}"
         "<|assistant|>[[\n<think>hm</think>\nYo<|endoftext|>]]"),
        ("deepseek_r1_distill", [ASK, SAY, ASK, THINK], True,
         f"{BOS}{SEEK_ASK}{SEEK_TURN}[[Yo{EOS}]]{SEEK_ASK}{SEEK_TURN}<think>\n"
         f"[[hm\n</think>\n\nYo{EOS}]]"),
        # Marked by the template itself.
        ("qwen3_training", [ASK, THINK, ASK, THINK], True,
         f"{QWEN_ASK}{QWEN_TURN}[[<think>\nhm\n</think>\n\nYo<|im_end|>]]\n{QWEN_ASK}{QWEN_TURN}"
         "[[<think>\nhm\n</think>\n\nYo<|im_end|>]]"),
        ("llama3_training", [ASK, SAY], False,
         f"<|begin_of_text|>{LLAMA_ASK}{LLAMA_TURN}[[Yo<|eot_id|>]]"),
        ("deepseekv3_training", [ASK, CALL, FOUND, SAY], False,
         f"{BOS}{SEEK_ASK}[[{SEEK_TURN}{SEEK_CALL}{EOS}]]{SEEK_FOUND}[[{SEEK_OVER}Yo{EOS}]]"),
    ],
)  # fmt: skip
def test_a_mask_is_the_one_made_by_hand(
    chat_of: Any, name: str, messages: list[Message], thinking: bool, end: str
):
    has_tools = CALL.tool_calls in [message.tool_calls for message in messages]
    tools = (TOOL,) if has_tools else ()
    said = marked(chat_of(name), messages, thinking=thinking, tools=tools)
    assert said.endswith(end), said
    assert said.count("[[") == sum(message.role == "assistant" for message in messages)


@pytest.mark.parametrize(
    ("name", "turn", "thinking"),
    [
        *[(name, SAY, False) for name in ("qwen2_5", "qwen3", "llama3", "glm4moe")],
        *[(name, CALL, False) for name in ("qwen2_5", "qwen3", "llama3_2", "glm4moe")],
        *[(name, THINK, True) for name in ("qwen3", "glm4moe")],
        *[(name, THINK_CALL, True) for name in ("qwen3", "glm4moe")],
    ],
)
def test_a_turn_is_read_back_as_its_template_writes_it(
    chat_of: Any, name: str, turn: Message, thinking: bool
):
    """GLM's templates write a line feed before a thought, and behind an empty one."""
    chat = chat_of(name)
    tools = (TOOL,) if turn.tool_calls else ()
    asked = chat.decided(Problem("1", "d", (ASK,), tools=tools, thinking=thinking or None))
    found = chat.parse(asked, chat.turn_ids(asked, turn))
    assert not found.error
    said = (found.content, (found.reasoning or "").strip() or None, found.tool_calls)
    assert said == (turn.content, turn.reasoning, turn.tool_calls)


@pytest.mark.parametrize(
    ("name", "messages", "thinking", "text"),
    [
        ("qwen3", [ASK, THINK, ASK, THINK], True, r"messages\[1\]: .* does not keep the prefix"),
        ("glm4moe", [ASK, THINK, ASK, THINK], True, r"messages\[1\]: .* does not keep the prefix"),
        ("deepseek_r1_distill", [ASK, THINK, ASK, THINK], True, r"messages\[1\]: .* the prefix"),
        ("qwen2_5", [ASK, THINK], True, r"messages\[1\]: .* drops the turn's thought"),
        ("llama3", [ASK, CALL, FOUND, SAY], False, r"messages\[1\]: .* the turn's tool calls"),
        ("gemma3", [ASK, CALL, FOUND, SAY], False, r"cannot render the turns .* must alternate"),
        ("gemma3", [ASK, THINK], True, r"messages\[1\]: .* drops the turn's thought"),
        # Its second call of a conversation lacks its header.
        ("deepseekv3", [ASK, CALL, FOUND, CALL, FOUND, SAY], False, r"messages\[3\]: .* prefix"),
        ("glm4moe_training", [ASK, THINK, ASK, THINK], True, r"messages\[1\]: .* turn's thought"),
    ],
)  # fmt: skip
def test_a_turn_that_a_template_rewrites_is_named(
    chat_of: Any, name: str, messages: list[Message], thinking: bool, text: str
):
    with pytest.raises(InputError, match=text):
        marked(chat_of(name), messages, thinking=thinking)
