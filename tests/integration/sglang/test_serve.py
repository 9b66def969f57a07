"""`tributary serve` with the real SGLang: OpenAI's client, two models, tools, thinking, the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest

from engines.sglang.serving.parsers import Parsers, parsers_of
from infra.processes.ports import free_ports, is_listening
from tests.parts.chat_parts import random_base
from tests.parts.doc_blocks import snippets
from tests.parts.tiny import tiny_model

pytestmark = pytest.mark.integration

KEY = "sk-planted-0123456789"
START_S = 300
SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "parameters": {
            "type": "object",
            "properties": {"q": {"type": "string"}},
            "required": ["q"],
        },
    },
}
HELLO: Any = [{"role": "user", "content": "color of ant"}]


@dataclass
class Served:
    """The command, running, with everything it has said up to its ready line."""

    process: subprocess.Popen[str]
    port: int
    said: list[str]

    def client(self, key: str = KEY) -> openai.OpenAI:
        url = f"http://127.0.0.1:{self.port}/v1"
        return openai.OpenAI(base_url=url, api_key=key, max_retries=0, timeout=60)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A GLM-like model and another one, behind one address with a key."""
    folder = tmp_path_factory.mktemp("serve")
    glm, other = random_base(folder / "glm"), tiny_model(folder / "other", seed=1)
    (port,) = free_ports(1)
    run = "import sys; from flows.command.main import main; main(sys.argv[1:])"
    models = (f"glm={glm}", str(other))
    options = ("--port", str(port), "--api-key-from", "SERVE_KEY")
    command = [sys.executable, "-c", run, "serve", *models, *options]
    env = os.environ | {"SERVE_KEY": KEY, "TRIBUTARY_HOME": str(folder / "home")}
    env["PYTHONUNBUFFERED"] = "1"
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env
    )
    said: list[str] = []
    assert process.stdout is not None
    try:
        for line in process.stdout:
            said.append(line.rstrip())
            if line.strip().startswith("-d "):
                break
        assert process.poll() is None, said
        yield Served(process, port, said)
    finally:
        process.kill()
        process.wait()


def test_the_ready_line_says_how_to_ask(served: Served) -> None:
    told = "\n".join(served.said)
    assert f"ready: http://127.0.0.1:{served.port}/v1" in told
    assert "tool calls by glm47, thinking by glm45" in told
    assert '-H "Authorization: Bearer $SERVE_KEY"' in told
    assert KEY not in told


def test_models_are_chosen_by_name(served: Served) -> None:
    client = served.client()
    assert [model.id for model in client.models.list()] == ["glm", "other"]
    for name in ("glm", "other"):
        answer = client.chat.completions.create(model=name, messages=HELLO, max_tokens=6, seed=1)
        assert answer.model == name
        assert answer.usage is not None
        assert 1 <= answer.usage.completion_tokens <= 6
    with pytest.raises(openai.NotFoundError, match="there are glm, other"):
        client.chat.completions.create(model="third", messages=HELLO)
    with pytest.raises(openai.AuthenticationError):
        served.client("sk-wrong").chat.completions.create(model="glm", messages=HELLO)


def test_the_page_shows_how_to_ask(served: Served) -> None:
    (shown,) = snippets("use-the-model.md", "python")
    for of_page, here in (
        ("http://127.0.0.1:8000", f"http://127.0.0.1:{served.port}"),
        ('"none"', repr(KEY)),
        ('"agent-rl"', '"other"'),
    ):
        assert shown.count(of_page) == 1
        shown = shown.replace(of_page, here)
    names: dict[str, Any] = {}
    exec(shown, names)
    assert names["answer"].choices[0].message.role == "assistant"


def test_an_answer_streams_in_pieces(served: Served) -> None:
    asked: Any = {"model": "other", "messages": HELLO, "max_tokens": 12, "temperature": 0}
    client = served.client()
    whole = client.chat.completions.create(**asked).choices[0].message.content
    pieces = [
        chunk.choices[0].delta.content or ""
        for chunk in client.chat.completions.create(**asked, stream=True)
        if chunk.choices
    ]
    assert len([piece for piece in pieces if piece]) > 1
    assert "".join(pieces) == whole


def test_calls_are_parsed(served: Served) -> None:
    """The model is random, so a grammar writes what a trained one would, after its thoughts."""
    call = "<tool_call>search<arg_key>q</arg_key><arg_value>ant</arg_value></tool_call>"
    asked: Any = {"model": "glm", "messages": HELLO, "tools": [SEARCH], "max_tokens": 160}
    answer = served.client().chat.completions.create(
        **asked, temperature=0, extra_body={"regex": call}
    )
    (choice,) = answer.choices
    said: Any = choice.message
    (made,) = said.tool_calls
    assert (made.function.name, made.function.arguments) == ("search", '{"q": "ant"}')
    assert choice.finish_reason == "tool_calls"


def test_thoughts_are_no_content_unless_thinking_is_off(served: Served) -> None:
    """Of a turn that is cut off while it thinks, and of one that may not think."""
    asked: Any = {"model": "glm", "messages": HELLO, "max_tokens": 6, "seed": 3}
    create = served.client().chat.completions.create
    thinks: Any = create(**asked).choices[0].message
    assert thinks.reasoning_content
    assert not thinks.content
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    answers: Any = create(**asked, extra_body=off).choices[0].message
    assert answers.reasoning_content is None
    assert answers.content


def test_the_parsers_follow_the_template(tmp_path: Path) -> None:
    assert parsers_of(random_base(tmp_path / "glm")) == Parsers("glm47", "glm45")


def test_ctrl_c_ends_everything(served: Served) -> None:
    """The last test of the file: nothing is served afterwards."""
    started = psutil.Process(served.process.pid).children(recursive=True)
    assert len(started) >= 4
    for process in started:
        assert KEY not in " ".join(process.cmdline())
    served.process.send_signal(signal.SIGINT)
    assert served.process.wait(60) == 0
    _, alive = psutil.wait_procs(started, timeout=10)
    assert alive == []
    assert not is_listening(served.port)
