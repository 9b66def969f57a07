"""No more servers of MCP run than their bound, whose turn rollouts wait for without losing time."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import psutil
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from curricula.mcp.mcp_tools import McpEnvironment
from curricula.mcp.spec import McpServer
from engines.rollout.drivers.driver import Conversation
from engines.rollout.drivers.session_host import SessionHost
from engines.rollout.roller import Roller
from engines.types import AssistantTurn, Message, Problem, Rollout, Status, Tool, ToolCall
from infra.processes.coroutines import limit_heeds_turns
from tasks.domain import Domain
from tasks.live_domain import open_domain
from tests.parts.agent_parts import Script, TextChat, attempt_of
from tests.parts.rollout_parts import domain

pytestmark = pytest.mark.unit

COUNTING = """
import json, os, sys, time
from pathlib import Path
seen, pid = Path(os.environ["SEEN"]), os.getpid()
(seen / str(pid)).touch()

def lives(each):
    try:
        return Path(f"/proc/{each.name}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False

(seen / str(pid)).write_text(str(sum(map(lives, seen.iterdir()))))
about = {"serverInfo": {"name": "x", "version": ""}, "capabilities": {}}
for line in sys.stdin:
    asked = json.loads(line)
    while asked["method"] == "tools/call" and len(list(seen.iterdir())) < int(os.environ["FIRST"]):
        time.sleep(0.01)
    result = {
        "initialize": {"protocolVersion": "2025-06-18", **about},
        "tools/list": {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]},
        "tools/call": {"content": [{"type": "text", "text": "well"}]},
    }.get(asked["method"])
    if result is not None:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""
"""it knows how many of its kind run when it starts, and answers once so many have begun"""
PROBLEM = Problem("p/1", "d", (Message("user", "go"),), tools=(Tool("t", "", {}),))


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where each server writes how many of its kind run."""
    (tmp_path / "counting.py").write_text(COUNTING)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "seen").mkdir()
    return tmp_path / "seen"


def server(seen: Path, **more: Any) -> McpServer:
    given = {"command": ["python", "counting.py"], "program": "counting", "sandbox": False}
    return McpServer.model_validate({**given, "env": {"SEEN": str(seen), "FIRST": "1"}, **more})


def children() -> list[psutil.Process]:
    return [p for p in psutil.Process().children(recursive=True) if is_server(p)]


def is_server(process: psutil.Process) -> bool:
    try:
        return "counting.py" in process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):  # it ends just now
        return False


async def asked(episode: Any, tool: str) -> str:
    turn = AssistantTurn("", "", None, (ToolCall(tool, {}),))
    (message,) = (await episode.step(turn)).messages
    return message.content


def calls_once(prompt: str) -> str:
    return "well then" if "tool> " in prompt else "!t"


async def rolled_at_once(environment: McpEnvironment, count: int) -> list[Rollout]:
    """Rollouts of one problem, each of which calls a tool once."""
    live = domain("d", lambda answer: 1.0, driver=Conversation(environment, 4), max_new_tokens=999)
    made = Roller(
        generate=Script(calls_once).generate, chat=TextChat(), context_length=99_999, seed=0
    )
    return await made.roll_group(live, PROBLEM, count, temperature=1.0, group_id="g", seed_name="g")


async def test_no_more_servers_run_than_the_bound_and_every_rollout_ends(
    seen: Path,
) -> None:
    bounded = server(seen, at_once=7, env={"SEEN": str(seen), "FIRST": "3"})
    curriculum = {"name": "needle", "mcp": bounded.model_dump()}
    rewards = [{"name": "exact", "outcome": True}]
    written = {"curriculum": curriculum, "rewards": rewards, "max_turns": 4}
    opened = open_domain(Domain.model_validate(written), sharing=2)
    assert isinstance(opened.environment, McpEnvironment)
    rollouts = await rolled_at_once(opened.environment, 24)
    assert [(r.status, r.transcript.answer) for r in rollouts] == [
        (Status.COMPLETED, "well then")
    ] * 24
    running = [int(path.read_text()) for path in seen.iterdir()]
    assert len(running) == 24, "each rollout had a server of its own"
    assert max(running) == 3, "half of 7: two processes have the bound together"
    assert children() == []


async def test_a_rollout_that_calls_nothing_waits_for_no_server(seen: Path) -> None:
    environment = McpEnvironment(server(seen, at_once=1))
    first, second = [await environment.start(PROBLEM) for _ in range(2)]
    assert await asked(first, "t") == "well"
    assert "no tool 'sell'" in await asked(second, "sell")
    assert (await second.step(AssistantTurn("It is 1", "It is 1", None, ()))).done
    assert len(children()) == 1
    await second.close()
    await first.close()


async def test_waiting_for_a_server_spends_no_time_of_the_rollout(seen: Path) -> None:
    environment = McpEnvironment(server(seen, at_once=1))
    first, second, third = [await environment.start(PROBLEM) for _ in range(3)]
    await asked(first, "t")
    host = SessionHost(Script(calls_once).generate, TextChat(), attempt_of(PROBLEM))

    async def in_time() -> str:
        limit_heeds_turns(host.busy)
        return await asked(second, "t")

    waiting, cancelled = asyncio.create_task(in_time()), asyncio.create_task(asked(third, "t"))
    await asyncio.sleep(0.2)
    assert host.idle_seconds == 0.0
    cancelled.cancel()
    await first.close()
    assert await waiting == "well"
    assert host.idle_seconds > 0.0
    await second.close()
    last = await environment.start(PROBLEM)
    assert await asked(last, "t") == "well", "each gave its place back"
    await last.close()
    assert children() == []


@pytest.mark.parametrize("command", [["python", "-c", "raise SystemExit('no')"], ["nowhere"]])
async def test_a_server_that_does_not_start_gives_its_place_back(command: list[str]) -> None:
    settings = McpServer(command=command, sandbox=False, at_once=1)
    rollouts = await rolled_at_once(McpEnvironment(settings), 3)
    assert [rollout.status for rollout in rollouts] == [Status.FAILED] * 3


async def test_sessions_at_a_url_have_the_same_bound() -> None:
    begun, running = 0, set[str]()
    most = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal begun, most
        if request.method == "DELETE":
            running.remove(request.headers["mcp-session-id"])
            return web.Response()
        if request.method == "GET":
            return web.Response(status=405)
        said = await request.json()
        about = {"serverInfo": {"name": "x", "version": ""}, "capabilities": {}}
        results: dict[str, Any] = {
            "initialize": {"protocolVersion": "2025-06-18", **about},
            "tools/call": {"content": [{"type": "text", "text": "well"}]},
        }
        if (result := results.get(said["method"])) is None:
            return web.Response(status=202)
        headers = {}
        if said["method"] == "initialize":
            begun += 1
            running.add(headers.setdefault("mcp-session-id", str(begun)))
            most = max(most, len(running))
        await asyncio.sleep(0.01)
        reply = {"jsonrpc": "2.0", "id": said["id"], "result": result}
        return web.json_response(reply, headers=headers)

    app = web.Application()
    app.router.add_route("*", "/mcp", answer)
    async with TestServer(app) as serving:
        settings = McpServer(url=str(serving.make_url("/mcp")), at_once=2)
        rollouts = await rolled_at_once(McpEnvironment(settings), 10)
    assert [rollout.status for rollout in rollouts] == [Status.COMPLETED] * 10
    assert (begun, most, running) == (10, 2, set())
