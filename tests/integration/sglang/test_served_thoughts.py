"""How servers split answers into thought and content, and read calls, with SGLang's own parsers and
its own choice between them, for templates of every kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engines.chat import Chat
from engines.chat.call_forms import HARMONY
from engines.chat.chat_folder import load_chat_folder
from engines.chat.pieces import Pieces
from engines.sglang.serving.endpoint import AUTO, parsers_of
from tests.parts.chat_parts import (
    LLAMA_TOKENS,
    QWEN_TOKENS,
    THOUGHT_TEMPLATES,
    chat_folder,
    random_base,
)
from tests.parts.sglang_python import SglangPython
from tests.parts.sglang_thoughts import Case, calls_of, splits_of
from tests.parts.whole_rendering import write_folder
from tests.unit.engines.chat.test_call_forms import (
    ARGUMENTS,
    TOOL,
    TRL,
    caller,
    problem,
    written_calls,
)

pytestmark = pytest.mark.integration

ON, OFF = {"enable_thinking": True}, {"enable_thinking": False}
T_ON, T_OFF = {"thinking": True}, {"thinking": False}
CHANNEL = "<|channel|>"
THOUGHT = f"{CHANNEL}analysis<|message|>R<|end|><|start|>assistant"
SAID = "<think>R</think>A"


def folder_of(kind: str, folder: Path) -> Path:
    if kind == "glm":
        return random_base(folder)
    if kind == "gptoss":
        return write_folder(folder, (TRL / "gptoss.jinja").read_text(), "bytes")
    is_qwen = kind == "qwen3"
    tokens, end = (QWEN_TOKENS, "<|im_end|>") if is_qwen else (LLAMA_TOKENS, "<|eot|>")
    made = chat_folder(folder, THOUGHT_TEMPLATES[kind], tokens, end)
    (made / "config.json").write_text('{"model_type": "qwen3"}' if is_qwen else "{}")
    return made


@pytest.mark.parametrize(
    ("kind", "tools", "thinking", "defaults"),
    [
        ("glm", "glm47", "glm45", OFF),
        ("qwen3", "qwen25", "qwen3", ON),
        ("deepseek-v31", AUTO, "deepseek-v3", T_OFF),
        ("granite", AUTO, "deepseek-v3", T_OFF),
        ("r1", AUTO, "deepseek-r1", {}),
        ("r1-in-text", AUTO, "qwen3", OFF),
        ("llama", AUTO, "none", {}),
        ("gptoss", "gpt-oss", "gpt-oss", {}),
    ],
)
def test_the_parsers_follow_the_template(
    kind: str, tools: str, thinking: str, defaults: dict[str, bool], tmp_path: Path
) -> None:
    found = parsers_of(folder_of(kind, tmp_path))
    assert (found.tools, found.thinking, dict(found.defaults)) == (tools, thinking, defaults)


CASES: list[tuple[str, Any, str, str, str]] = [
    ("glm", None, "A", "", "A"),
    ("glm", OFF, "A", "", "A"),
    ("glm", ON, SAID, "R", "A"),
    ("qwen3", None, SAID, "R", "A"),
    ("qwen3", ON, SAID, "R", "A"),
    ("qwen3", OFF, "A", "", "A"),
    ("deepseek-v31", None, "A", "", "A"),
    ("deepseek-v31", T_ON, "R</think>A", "R", "A"),
    ("granite", None, "A", "", "A"),
    ("granite", T_ON, SAID, "R", "A"),
    ("r1", None, "R</think>A", "R", "A"),
    ("r1", OFF, "R</think>A", "R", "A"),
    ("r1", None, "R", "R", ""),
    ("r1-in-text", None, SAID, "R", "A"),
    ("r1-in-text", None, "A", "", "A"),
    ("gptoss", None, f"{CHANNEL}final<|message|>A", "", "A"),
    ("gptoss", None, f"{THOUGHT}{CHANNEL}final<|message|>A", "R", "A"),
]


def test_thoughts_and_answers_are_split_whole_and_streamed(
    tmp_path: Path, sglang_python: SglangPython
) -> None:
    cases: list[Case] = []
    for number, (kind, kwargs, said, *_) in enumerate(CASES):
        folder = folder_of(kind, tmp_path / str(number))
        parsers = parsers_of(folder)
        cases.append(
            {
                "template": load_chat_folder(folder).template.text,
                "parser": parsers.thinking,
                "kwargs": {**parsers.defaults, **(kwargs or {})},
                "said": said,
            }
        )
    for case, split in zip(CASES, sglang_python(splits_of, cases), strict=True):
        assert split == [list(case[3:])] * 2, case


def test_the_parser_of_a_form_reads_what_templates_write(
    tmp_path: Path, sglang_python: SglangPython
) -> None:
    fields = {key: {"type": kind} for key, kind in TOOL.parameters.items()}
    tool = {"name": TOOL.name, "parameters": {"type": "object", "properties": fields}}
    cases: list[Case] = []
    wanted: list[Any] = []
    for name, _, text in written_calls():
        chat = Chat.load(write_folder(tmp_path / name, text, "bytes"))
        form = Pieces(load_chat_folder(tmp_path / name).template).call_form()
        for arguments in ARGUMENTS if form and form.server_parser else []:
            ids = chat.turn_ids(chat.decided(problem()), caller(arguments))
            said = chat.decode(ids[:-1] if ids[-1] in chat.stop_token_ids else ids)
            if form is HARMONY:  # SGLang reads the form of models alone, and not the template's
                header = "commentary to=functions.put <|constrain|>json<|message|>"
                said = f"<|start|>assistant{CHANNEL}{header}{json.dumps(arguments)}<|call|>"
            cases.append({"parser": form.server_parser, "said": said, "tool": tool})
            wanted.append([name, said, [["put", arguments]]])
    others = [
        (name, said, found)
        for (name, said, calls), found in zip(wanted, sglang_python(calls_of, cases), strict=True)
        if [[called, json.loads(given)] for called, given in found] != calls
    ]
    assert others == []
