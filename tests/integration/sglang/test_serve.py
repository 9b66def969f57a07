"""`tributary serve` with the real SGLang: OpenAI's client, two models, tools, thinking, the end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest

from infra.processes.network import free_ports
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
ALWAYS_THINKS = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content.split('</think>')[-1] }}<|endoftext|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|><think>\n{% endif %}"
)
"""as the templates of DeepSeek-R1's distilled models do"""
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
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models: `glm`, which is like GLM's, and `other`, which always thinks."""
    folder = tmp_path_factory.mktemp("serve")
    random_base(folder / "glm")
    other = tiny_model(folder / "other", seed=1)
    (other / "chat_template.jinja").write_text(ALWAYS_THINKS)
    return folder


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Served]:
    """Both models behind one address with a key."""
    with serving(folder, f"glm={folder / 'glm'}", str(folder / "other")) as served:
        yield served


@contextmanager
def serving(folder: Path, *models: str) -> Iterator[Served]:
    (port,) = free_ports(1)
    run = "import sys; from flows.command.main import main; main(sys.argv[1:])"
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
    assert "tool calls by glm47, thinking by glm45, off unless a request's" in told
    assert "thinking by deepseek-r1, always on" in told
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


def test_one_model_alone_answers_no_request_for_another(folder: Path) -> None:
    with serving(folder, f"one={folder / 'other'}") as served:
        client = served.client()
        for asked in ("two", "one2"):
            with pytest.raises(openai.NotFoundError, match=f"no model '{asked}'; there is one"):
                client.chat.completions.create(model=asked, messages=HELLO, stream=True)
            with pytest.raises(openai.NotFoundError, match="there is one"):
                client.completions.create(model=asked, prompt="ant", max_tokens=3)
        for told in ({"model": "one"}, {}):
            body = {"messages": HELLO, "max_tokens": 3, **told}
            answer = client.post("/chat/completions", body=body, cast_to=httpx.Response)
            assert answer.json()["usage"]["completion_tokens"] > 0


def test_the_page_shows_how_to_ask(served: Served) -> None:
    (shown,) = snippets("use-the-model.md", "python")
    for of_page, here in (
        ("http://127.0.0.1:8000", f"http://127.0.0.1:{served.port}"),
        ('"KEY"', repr(KEY)),
        ('"agent-rl"', '"other"'),
    ):
        assert shown.count(of_page) == 1
        shown = shown.replace(of_page, here)
    names: dict[str, Any] = {}
    exec(shown, names)
    assert names["answer"].choices[0].message.role == "assistant"


def test_an_answer_streams_in_pieces(served: Served) -> None:
    asked: Any = {"model": "glm", "messages": HELLO, "max_tokens": 12, "temperature": 0}
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
    """The model is random, so a grammar writes what a trained one would."""
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


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("model", "kwargs", "thinks"),
    [
        ("glm", None, False),
        ("glm", {"enable_thinking": False}, False),
        ("glm", {"enable_thinking": True}, True),
        ("other", None, True),
        ("other", {"enable_thinking": False}, True),
    ],
)
def test_a_request_that_says_nothing_gets_the_template_s_own_mode(
    served: Served, model: str, kwargs: dict[str, bool] | None, thinks: bool, stream: bool
) -> None:
    """Answers are cut off, so that one which thinks is all thought."""
    body = {"chat_template_kwargs": kwargs} if kwargs else {}
    asked: Any = {"model": model, "messages": HELLO, "max_tokens": 6, "seed": 3}
    create: Any = served.client().chat.completions.create
    made = create(**asked, extra_body=body, stream=stream)
    said = [c.choices[0].delta for c in made if c.choices] if stream else [made.choices[0].message]
    thought = "".join(getattr(piece, "reasoning_content", None) or "" for piece in said)
    content = "".join(piece.content or "" for piece in said)
    assert (bool(thought), bool(content)) == (thinks, not thinks)


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
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", served.port), timeout=1.0)
