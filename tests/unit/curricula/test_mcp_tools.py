"""Tools of real MCP servers, over pipes, in a sandbox, and over HTTP on loopback."""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from pydantic import ValidationError

from curricula.built_in_curricula import build
from curricula.mcp.mcp_connection import McpLost
from curricula.mcp.mcp_tools import McpEnvironment, listed_tools
from curricula.mcp.spec import McpServer
from engines.rollout.drivers.driver import Conversation
from engines.rollout.drivers.session_host import SessionHost
from engines.types import (
    AssistantTurn,
    Message,
    Problem,
    Rollout,
    RowCurriculum,
    Status,
    ToolCall,
    Transcript,
)
from infra.errors import InputError
from infra.sandbox.kinds import bubblewrap
from tasks.domain import Domain
from tasks.live_domain import open_domain
from tests.parts.agent_parts import Script, TextChat, attempt_of

pytestmark = pytest.mark.unit

SERVER = """
import os, sys, time
from mcp.server.fastmcp import Context, FastMCP
server = FastMCP("shop", host="127.0.0.1", port=int(sys.argv[1]) if sys.argv[1:] else 8000)
stock = {"ant": 3}

@server.tool()
def take(name: str, pieces: int) -> str:
    "Take pieces from the stock."
    if stock.get(name, 0) < pieces:
        raise ValueError(f"only {stock.get(name, 0)} left")
    stock[name] -= pieces
    return f"{stock[name]} left"

@server.tool()
def environment(name: str) -> str:
    return os.environ.get(name, "unset")

@server.tool()
def reach(port: int) -> str:
    import socket
    socket.create_connection(("127.0.0.1", port), 1).close()
    return "reached"

@server.tool()
def wait() -> str:
    time.sleep(60)
    return "late"

@server.tool()
def much() -> str:
    return "x" * 100_000

@server.tool()
def end() -> str:
    print("no more", file=sys.stderr, flush=True)
    os._exit(3)

@server.tool()
def key(context: Context) -> str:
    return context.request_context.request.headers.get("authorization", "none")

print("a line that is no message", flush=True)
server.run("streamable-http" if sys.argv[1:] else "stdio")
"""
PROBLEM = Problem("p/1", "d", (Message("user", "take two ants"),))


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "shop.py").write_text(SERVER)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def server(**more: Any) -> McpServer:
    given = {"command": ["python", "shop.py"], "program": "shop", "sandbox": False}
    return McpServer.model_validate(given | more)


def offered(settings: McpServer) -> Problem:
    (curriculum,) = [build("needle", {}, settings)]
    (problem,) = curriculum.problems("rl", 1, 0)
    return problem


async def asked(episode: Any, tool: str, /, **arguments: Any) -> str:
    turn = AssistantTurn("", "", None, (ToolCall(tool, arguments),))
    (message,) = (await episode.step(turn)).messages
    assert message.role == "tool"
    return message.content


def children() -> list[psutil.Process]:
    return [p for p in psutil.Process().children(recursive=True) if is_server(p)]


def is_server(process: psutil.Process) -> bool:
    try:
        return "shop.py" in " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):  # it ends just now
        return False


async def test_each_episode_has_a_server_of_its_own_that_ends_with_it(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_TOKEN", "hidden-1")
    settings = server(call_s=2, result_chars=80, env={"TOKEN": "secret:SHOP_TOKEN"})
    problem = offered(settings)
    assert [tool.name for tool in problem.tools][:2] == ["take", "environment"]
    take = problem.tools[0]
    assert (take.description, take.parameters) == (
        "Take pieces from the stock.", {"name": "string", "pieces": "integer"},
    )  # fmt: skip
    environment = McpEnvironment(settings)
    first, second = [await environment.start(problem) for _ in range(2)]
    assert await asked(first, "take", name="ant", pieces=2) == "1 left"
    assert await asked(first, "take", name="ant", pieces=1) == "0 left"
    assert await asked(second, "take", name="ant", pieces=1) == "2 left"
    assert len(children()) == 2
    assert "only 0 left" in await asked(first, "take", name="ant", pieces=1)
    assert (await asked(first, "take", name="ant")).startswith("error: ")
    assert (await asked(first, "sell")).startswith("error: no tool 'sell'; there are take, ")
    assert await asked(first, "much") == f"{'x' * 80}\n(99920 more characters are left out)"
    assert await asked(first, "environment", name="TOKEN") == "secret:SHOP_TOKEN"
    assert await asked(first, "environment", name="SHOP_TOKEN") == "unset"
    assert await asked(first, "wait") == "error: no answer within 2 s"
    with pytest.raises(McpLost, match="is gone: "):
        await asked(second, "end")
    done = await second.step(AssistantTurn("It is 1", "It is 1", None, ()))
    assert done.done
    for episode in (first, second):
        await episode.close()
    assert children() == []


@pytest.mark.skipif(bool(bubblewrap.refusal()), reason=bubblewrap.refusal())
async def test_a_server_in_a_sandbox_reaches_no_network(shop: Path) -> None:
    settings = server(sandbox=True)
    with socket.create_server(("127.0.0.1", 0)) as other:
        episode = await McpEnvironment(settings).start(offered(settings))
        assert await asked(episode, "take", name="ant", pieces=2) == "1 left"
        port = other.getsockname()[1]
        assert "error: " in await asked(episode, "reach", port=port)
        assert await asked(episode, "environment", name="HOME") != str(Path.home())
        await episode.close()
    assert children() == []
    with pytest.raises(InputError, match=r"(?s)does not start: .*No module named 'nothing'"):
        listed_tools(McpServer(command=["python", "-c", "import nothing"]))


async def test_a_server_at_a_url_gets_the_key_and_a_session_for_each_episode(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_KEY", "Bearer hidden-2")
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    running = await asyncio.create_subprocess_exec(
        sys.executable, "shop.py", str(port), cwd=shop, stdout=-3, stderr=-3
    )
    try:
        await until_it_listens(port)
        settings = McpServer(
            url=f"http://127.0.0.1:{port}/mcp", headers={"Authorization": "secret:SHOP_KEY"},
            tools=["key", "take"],
        )  # fmt: skip
        problem = offered(settings)
        assert [tool.name for tool in problem.tools] == ["take", "key"]
        episode = await McpEnvironment(settings).start(problem)
        assert await asked(episode, "key") == "secret:SHOP_KEY"
        assert "no tool 'end'" in await asked(episode, "end"), "it is not among `tools`"
        await episode.close()
        with pytest.raises(InputError, match="has no tool 'sell'; it has take, "):
            listed_tools(settings.model_copy(update={"tools": ["sell"]}))
    finally:
        running.kill()
        await running.wait()
    with pytest.raises(InputError, match="does not start: ConnectError"):
        listed_tools(settings)


async def until_it_listens(port: int) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            await asyncio.sleep(0.1)
    raise AssertionError("the server does not listen")


async def rolled(settings: McpServer, calls: list[tuple[ToolCall, ...]]) -> Rollout:
    """A rollout in which the policy makes these calls, then answers."""
    turns = iter(calls)

    class Calls(TextChat):
        def parse(self, problem: Problem, token_ids: Any, before: Any = ()) -> AssistantTurn:
            return AssistantTurn("said", "said", None, next(turns, ()))

    host = SessionHost(Script(lambda prompt: "said").generate, Calls(), attempt_of(PROBLEM))
    return await Conversation(McpEnvironment(settings), 4).run(offered(settings), host)


async def test_a_reward_sees_calls_and_results_and_a_lost_server_fails_the_rollout(
    shop: Path,
) -> None:
    calls = [ToolCall("take", {"name": "ant", "pieces": n}) for n in (2, 1)]
    rollout = await rolled(server(), [tuple(calls)])
    assert rollout.status is Status.COMPLETED

    def sold(transcript: Transcript) -> list[tuple[str, Any]]:
        calls = [call for m in transcript.messages for call in m.tool_calls]
        results = [m.content for m in transcript.messages if m.role == "tool"]
        return [(call.name, result) for call, result in zip(calls, results, strict=True)]

    assert sold(rollout.transcript) == [("take", "1 left"), ("take", "0 left")]
    assert not rollout.samples[0].loss_mask[: rollout.samples[0].num_prompt_tokens].any()
    lost = await rolled(server(), [(ToolCall("end", {}),)])
    assert lost.status is Status.FAILED
    assert "environment: McpLost: the MCP server 'python shop.py' is gone" in lost.samples[0].reason
    short = await rolled(server(max_calls=1), [tuple(calls)])
    assert (short.status, short.transcript.answer) == (Status.COMPLETED, "said")
    assert children() == []


def test_settings_say_one_place_and_a_domain_without_an_environment_gets_one(
    tmp_path: Path,
) -> None:
    for wrong, said in (
        ({}, "write either a `command`"),
        ({"command": ["a"], "url": "http://127.0.0.1/mcp"}, "write either a `command`"),
        ({"command": ["a"], "headers": {"a": "b"}}, "mcp.headers: says nothing"),
        ({"url": "127.0.0.1"}, "is no address"),
        ({"url": "http://a.com/mcp", "headers": {"A": "secret:KEY"}}, "in clear text"),
        ({"command": ["a"], "sandbox": False, "readable": ["/opt"]}, "reads everything"),
    ):
        with pytest.raises(ValidationError, match=said):
            McpServer.model_validate(wrong)
    for right in ({"command": ["a"]}, {"url": "http://127.0.0.1/mcp"}):
        # `check` and the run's record write down every field, and read it again.
        server = McpServer.model_validate(right)
        assert McpServer.model_validate_json(server.model_dump_json()) == server
    (tmp_path / "rows.jsonl").write_text('{"question": "1+1", "answer": "2"}\n' * 9)
    rows = {"name": "files", "options": {"sources": {"files": [str(tmp_path / "rows.jsonl")]}}}
    mcp = {"command": ["python", "shop.py"], "sandbox": False}
    rewards = [{"name": "exact", "outcome": True}]
    domain = {"curriculum": {**rows, "mcp": mcp}, "rewards": rewards, "max_turns": 4}
    opened = open_domain(Domain.model_validate(domain))
    assert isinstance(opened.environment, McpEnvironment)
    assert isinstance(opened.live.curriculum, RowCurriculum)
    assert (
        "mcp" not in Domain.model_validate({**domain, "curriculum": rows}).curriculum.model_dump()
    )
    with pytest.raises(ValidationError, match="max_turns: is 1"):
        Domain.model_validate({**domain, "max_turns": 1})
    own = {**domain, "curriculum": {"name": "agent", "mcp": mcp}}
    with pytest.raises(InputError, match="has an environment with tools of its own"):
        open_domain(Domain.model_validate(own))
