"""`tributary chat`: how long an answer may be, and what it asks of the template."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engines.sglang.topology import ServedFleet
from engines.types import Message, Problem
from flows.command.main import main
from flows.command.models.chat_command import ChatModel, ChatOptions, Conversation, lines_of
from flows.one_stage.build import recipe_data
from flows.one_stage.one_domain import OneStage
from infra.errors import InputError
from tests.parts.chat_parts import (
    DEEPSEEK_V31,
    LLAMA,
    LLAMA_TOKENS,
    QWEN3,
    QWEN_TOKENS,
    R1_IN_HEADER,
    chat_folder,
    random_base,
)
from tests.parts.json_server import json_server

pytestmark = pytest.mark.unit

HELLO = [{"role": "user", "content": "Hello"}]


def event(**choice: Any) -> bytes:
    said = json.dumps({"choices": [choice]}, ensure_ascii=False)
    return f"data: {said}\n\n".encode()


def test_an_answer_may_hold_any_character_and_says_that_it_was_cut_off(tmp_path: Path) -> None:
    text = "a\u2028b\u0085c \U0001f600"
    stream = event(delta={"content": text}) + event(delta={}, finish_reason="length")
    model = model_of(tmp_path)
    with json_server(lambda *_: (200, stream + b"data: [DONE]\n\n")) as port:
        talk = Conversation(f"http://127.0.0.1:{port}", model, options())
        assert list(talk.say("Hello")) == [("content", text), ("end", "length")]
    assert talk.messages[-1] == {"role": "assistant", "content": text}
    pieces = [stream[at : at + 3] for at in range(0, len(stream), 3)]
    assert list(lines_of(pieces)) == stream.decode().split("\n")


def model_of(folder: Path, template: str = LLAMA, context: int = 512) -> ChatModel:
    tokens, end = (QWEN_TOKENS, "<|im_end|>") if template is QWEN3 else (LLAMA_TOKENS, "<|eot|>")
    chat_folder(folder, template, tokens, end)
    (folder / "config.json").write_text(f'{{"max_position_embeddings": {context}}}')
    return ChatModel.of(folder, ServedFleet(model=str(folder)))


def options(max_tokens: int | None = None, *, thinking: bool = False) -> ChatOptions:
    return ChatOptions("", 0.7, max_tokens, thinking)


def test_an_answer_has_what_the_context_leaves_and_at_most_512(tmp_path: Path) -> None:
    small = model_of(tmp_path / "small")
    asked = Problem("p", "chat", (Message("user", "Hello"),))
    assert small.budget(HELLO, options()) == 512 - len(small.chat.prompt_ids(asked))
    assert model_of(tmp_path / "large", context=8192).budget(HELLO, options()) == 512
    assert model_of(tmp_path / "given").budget(HELLO, options(64)) == 64


def test_a_conversation_that_fills_the_context_is_refused_with_its_numbers(tmp_path: Path) -> None:
    model = model_of(tmp_path, context=64)
    with pytest.raises(InputError, match=r"tokens of the 64 .* that leaves 0 for an answer"):
        model.budget([{"role": "user", "content": "x" * 80}], options())
    with pytest.raises(InputError, match=r"it needs 64\. .* or lower --max-tokens"):
        model.budget(HELLO, options(64))


@pytest.mark.parametrize(
    ("template", "switch"),
    [(QWEN3, "enable_thinking"), (DEEPSEEK_V31, "thinking"), (R1_IN_HEADER, "enable_thinking")],
)
def test_thinking_is_asked_for_by_the_template_s_own_switch(
    template: str, switch: str, tmp_path: Path
) -> None:
    model = model_of(tmp_path, template)
    for thinking in (True, False):
        model.check(options(thinking=thinking))
        assert model.switches(options(thinking=thinking)) == {switch: thinking}


def test_thinking_of_a_template_that_knows_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--thinking: the model"):
        model_of(tmp_path).check(options(thinking=True))


def test_an_answer_of_one_stage_has_at_most_half_of_a_small_models_context(tmp_path: Path) -> None:
    model = random_base(tmp_path / "model")
    rows = [{"question": f"1+{n}", "answer": str(n + 1)} for n in range(100)]
    (tmp_path / "asks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = OneStage(
        kind="rl", model=str(model), data=[str(tmp_path / "asks.jsonl")], rewards=["math"],
        settings={"optimizer": {"lr": 1e-6}},
    )  # fmt: skip
    (expert,) = recipe_data(asked)["experts"].values()
    assert expert["domain"]["max_new_tokens"] == 256, "of 512; it was 512, which no prompt fits"
    (expert,) = recipe_data(replace(asked, max_new_tokens=500))["experts"].values()
    assert expert["domain"]["max_new_tokens"] == 500, "what a person says stands"


def test_a_pipe_that_says_nothing_starts_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model_of(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    with pytest.raises(SystemExit) as ended:
        main(["chat", str(tmp_path)])
    assert ended.value.code == 2
    assert "standard input is empty" in capsys.readouterr().err
