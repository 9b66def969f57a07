"""`tributary sessions diff`: turns with what was sent, what was sampled, and how they differ."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from engines.agents.wire.wire_format import Request
from engines.rollout.drivers.session_host import End
from engines.rollout.records.gallery import Gallery
from engines.types import Message, Rollout, Status
from tests.parts.agent_parts import Script, TextChat, session_of
from tests.parts.recorded_run import RecordedRun, exit_code

pytestmark = pytest.mark.unit


def rollout() -> Rollout:
    numbers = iter("123")
    session = session_of(Script(lambda prompt: f"answer {next(numbers)}"))
    user = Message("user", "find it")

    async def converse() -> None:
        async with session.turn(Request((user,), asked={"temperature": 0.2})) as answer:
            said = answer.said.message()
        back = replace(said, content=" answer  1")
        async with session.turn(Request((user, back, Message("tool", "here")))):
            pass
        async with session.turn(Request((user,))):
            pass

    asyncio.run(converse())
    return session.finish(End(Status.COMPLETED), {})


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecordedRun:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path / "home"))
    made = RecordedRun.of(tmp_path, "first").with_samples()
    gallery = Gallery(TextChat())
    gallery.add("step 4", rollout().samples)
    gallery.write(folder := made.folder("agents"))
    made.put("agents-rl", "rl", folder)
    return made


@pytest.mark.usefixtures("run")
def test_it_shows_turn_by_turn_what_was_sent_and_sampled(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert exit_code(["sessions", "diff", "agents-rl"]) == 0
    said = capsys.readouterr().out
    for text in (
        "kinds: first 1, continued 1, retry 1", "drift: white space 1", "asked: temperature [0.2]",
        "turn 1 after 0: first", "sent, user: find it", "sampled: answer 1",
        "came back with white space", "- answer 1", "+  answer  1", "turn 2 after 1: continued",
        "sent, tool: here", "sampled: answer 2", "2 of 2 samples are shown",
    ):  # fmt: skip
        assert text in said


@pytest.mark.usefixtures("run")
def test_as_json_by_step_and_up_to_a_limit(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        exit_code(["sessions", "diff", "agents-rl", "--limit", "1", "--step", "4", "--json"]) == 0
    )
    (session,) = json.loads(capsys.readouterr().out)["sessions"]
    assert [turn["sampled"] for turn in session["turns"]]
    assert exit_code(["sessions", "diff", "agents-rl", "--step", "9"]) == 2
    assert exit_code(["sessions", "diff", "agent-rl"]) == 2
    assert "has no such sessions" in " ".join(capsys.readouterr().err.split())
