"""Harness: a driver that runs a program of the user's own, with the policy behind its base URL.

    problem ─▶ files in a sandbox ─▶ command ── HTTP ──▶ gateway ─▶ session ─▶ policy
                                        └─▶ ends ─▶ files collected ─▶ rollout, judged

The sandbox reaches nothing but the gateway. How the rollout ends:
    the command ends with exit code 0                               COMPLETED
    budget of tokens, turns or branches, context, time limit        TRUNCATED
    a turn broke the format of a tool call                          MALFORMED, reward 0
    another exit code, a limit on memory or disk, no turn at all    FAILED, never trained on
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any, cast

from engines.agents.agent_session import AgentSession
from engines.agents.gateway import shared_gateway
from engines.agents.limits import SessionLimits
from engines.agents.wire.content_parts import arguments_text
from engines.agents.wire.wire_format import MODEL
from engines.rollout.drivers.session_host import End, SessionHost
from engines.types import Message, Problem, Rollout, Status
from infra.errors import InputError
from infra.sandbox.kinds import bubblewrap
from infra.sandbox.sandbox import (
    Limits,
    Sandbox,
    SandboxLost,
    SandboxRefused,
    SandboxResult,
    inside,
)
from infra.secret_references import without_variables
from infra.user_files import program_files

PORT = 8080
"""of the gateway, in the sandbox"""
URL = f"http://127.0.0.1:{PORT}"
_COLLECTED = 64_000
"""bytes of all files that are collected"""
_OUTPUT = 8192
_SHOWN = 300
_MEMORY, _DISK, _FILE, _PROCESSES = 8 << 30, 256 << 20, 64 << 20, 64
_ADDRESSES = 256 << 30
"""of one process: engines of JavaScript reserve some 10 GiB for each module of WebAssembly, such as
the one by which Node's `fetch` reads answers"""


class Harness:
    """Runs one program a rollout. Stateless between rollouts."""

    def __init__(
        self,
        command: Sequence[str],
        program: str = "",
        env: Mapping[str, str] | None = None,
        collect: Sequence[str] = (),
        answer_file: str = "",
        readable: Sequence[str] = (),
        seconds: float = 600.0,
        turns: int = 200,
        turn_tokens: int = 0,
        branches: int = 64,
    ) -> None:
        """`program`: a module or package among the recipe's `hooks`, put into the sandbox's folder.
        `collect`: files that rewards see. `answer_file`: one whose text is judged as the answer.
        `readable`: folders of this machine that the command may read. `seconds`, `turns`,
        `turn_tokens` (0: all that is left) and `branches` are limits of one rollout.

        Raises InputError for what cannot be, and where no program can be confined.
        """
        if isinstance(command, str) or not command:
            raise InputError("command: give a list, e.g. [python, my_agent.py]")
        if seconds <= 0 or turns < 1 or turn_tokens < 0 or branches < 1:
            raise InputError("seconds, turns, branches: must be above 0; turn_tokens: 0 or above")
        if why := bubblewrap.refusal():
            raise InputError(f"a harness needs a sandbox of the kind `bubblewrap`: {why}")
        self._command = tuple(command)
        self._program = program
        self._env = dict(env or {})
        self._answer_file = inside(answer_file) if answer_file else ""
        self._collect = [inside(name) for name in collect]
        self._readable = tuple(readable)
        self._limits = SessionLimits(turns=turns, turn_tokens=turn_tokens, samples=branches)
        self._bounds = Limits(
            seconds=seconds, cpu_seconds=max(1, round(seconds)), memory=_ADDRESSES,
            resident=_MEMORY, file_size=_FILE, disk=_DISK, open_files=256, processes=_PROCESSES,
            output=_OUTPUT,
        )  # fmt: skip

    async def run(self, problem: Problem, sessions: SessionHost) -> Rollout:
        """The rollout of one run of the program. Raises EngineError."""
        session = AgentSession(sessions, problem, self._limits)
        async with shared_gateway() as (gateway, address):
            key = gateway.open(session)
            try:
                end, files = await self._run(problem, session, address, key)
            finally:
                await gateway.close(key)
        answer = files.pop(self._answer_file, None) if self._answer_file else None
        return session.finish(end, files, answer)

    async def _run(
        self, problem: Problem, session: AgentSession, address: str, key: str
    ) -> tuple[End, dict[str, str]]:
        """Return how the program ended, and what it wrote."""
        loop = asyncio.get_running_loop()
        # A thread of its own: the loop's few would be taken for as long as programs run.
        thread = ThreadPoolExecutor(1, thread_name_prefix="harness")
        try:
            box = await _kept(loop.run_in_executor(thread, self._started, problem, address))
            try:
                work = loop.run_in_executor(thread, self._executed, box, problem, key)
                await session.until_over(work)
                if not work.done():
                    await asyncio.to_thread(box.stop)
                end = await work
                return end, await loop.run_in_executor(thread, self._collected, box)
            finally:
                await asyncio.to_thread(box.stop)
        finally:
            thread.shutdown(wait=False)

    def _started(self, problem: Problem, address: str) -> Sandbox:
        box = bubblewrap.start(self._bounds, readable=self._readable, reach={PORT: address})
        try:
            given = {**program_files(self._program), **files_of_problem(problem)}
            for name, content in given.items():
                box.write(name, content)
        except BaseException:
            box.stop()
            raise
        return box

    def _executed(self, box: Sandbox, problem: Problem, key: str) -> End:
        try:
            return self._end(box.exec(self._command, environment=self._environment(problem, key)))
        except SandboxLost as error:
            return End(Status.FAILED, f"harness: {error}")

    def _environment(self, problem: Problem, key: str) -> dict[str, str]:
        return {
            **self._env,
            "OPENAI_BASE_URL": f"{URL}/v1",
            "OPENAI_API_KEY": key,
            "OPENAI_MODEL": MODEL,
            "ANTHROPIC_BASE_URL": URL,
            "ANTHROPIC_API_KEY": key,
            "ANTHROPIC_MODEL": MODEL,
            "TRIBUTARY_PROBLEM": "problem.json",
        }

    def _end(self, result: SandboxResult) -> End:
        match result.status:
            case "ok":
                return End(Status.COMPLETED)
            case "timeout":
                return End(Status.TRUNCATED, f"time limit of {self._bounds.seconds:g} s")
            case "killed":
                reason = "a limit on memory, disk or CPU, or a signal, ended it"
            case "error":
                reason = f"exit code {result.exit_code}"
        said = result.stderr.strip() or result.stdout.strip()
        said = without_variables(said, self._env)[-_SHOWN:]
        return End(Status.FAILED, f"harness: {reason}" + (f": {said}" if said else ""))

    def _collected(self, box: Sandbox) -> dict[str, str]:
        """Return the wanted files that are there, as text."""
        found: dict[str, str] = {}
        left = _COLLECTED
        for name in dict.fromkeys([*filter(None, [self._answer_file]), *self._collect]):
            try:
                content = box.read(name, left)
            except (SandboxLost, SandboxRefused):
                continue
            found[name] = without_variables(content.decode(errors="replace"), self._env)
            left -= len(content)
        return found


async def _kept(starting: asyncio.Future[Sandbox]) -> Sandbox:
    """Return what was started; if nobody waits for it any more, it is stopped once it is there."""
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        starting.add_done_callback(_stop)
        raise


def _stop(started: asyncio.Future[Sandbox]) -> None:
    if not started.cancelled() and started.exception() is None:
        started.result().stop()


PROBLEM = "problem.json"


def files_of_problem(problem: Problem) -> dict[str, bytes]:
    """The problem as JSON, without its reference, and what its metadata has under `files`: texts by
    name."""
    said = {
        "id": problem.id,
        "messages": _written(problem.messages),
        "tools": [asdict(tool) for tool in problem.tools],
    }
    given: Any = problem.metadata.get("files", {})
    if not isinstance(given, Mapping) or not all(isinstance(t, str) for t in given.values()):
        raise InputError(f"problem {problem.id}: metadata.files must map names to texts")
    files = cast("Mapping[str, str]", given)
    found = {name: text.encode() for name, text in files.items()}
    return {**found, PROBLEM: json.dumps(said, default=dict).encode()}


def _written(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return them as Chat Completions has them, with calls and thoughts: a program may send them
    on."""
    found: list[dict[str, Any]] = []
    calls: list[str] = []
    for at, message in enumerate(messages):
        made: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.reasoning:
            made["reasoning_content"] = message.reasoning
        if message.role == "tool":
            made["tool_call_id"] = calls.pop(0) if calls else ""
        else:
            calls = [f"call_{at}_{number}" for number, _ in enumerate(message.tool_calls)]
        if message.tool_calls:
            said = [{"name": c.name, "arguments": arguments_text(c)} for c in message.tool_calls]
            made["tool_calls"] = [
                {"id": name, "type": "function", "function": function}
                for name, function in zip(calls, said, strict=True)
            ]
        found.append(made)
    return found
