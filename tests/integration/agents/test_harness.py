"""The driver `harness`: real programs in real sandboxes, with a scripted policy."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, cast

import pytest

from engines.agents.harness import Harness
from engines.rollout.drivers.driver import build
from engines.rollout.drivers.session_host import SessionHost
from engines.types import Message, Problem, Rollout, Status
from flows.load import load_recipe
from infra.errors import InputError
from infra.sandbox.kinds import bubblewrap
from tests.parts.agent_parts import Script, TextChat, attempt_of

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(bool(bubblewrap.refusal()), reason=bubblewrap.refusal()),
]

EXAMPLE = Path(__file__).parents[3] / "examples/harness_agent"
ASKED = (Message("user", "2+2"),)
FILES = {"files": {"a.py": "x"}}
PROBLEM = Problem("p/1", "agents", ASKED, reference="secret", metadata=FILES)
LEAVES = """
import socket, sys
for address in (("127.0.0.1", {port}), ("192.0.2.1", 80), ("127.0.0.1", 8081)):
    try:
        socket.create_connection(address, 1).close()
    except OSError:
        continue
    sys.exit(f"reached {{address}}")
open("files.txt", "w").write(open("a.py").read() + open("problem.json").read())
"""
ASKS = """
import json, os, urllib.request
body = json.dumps({"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}).encode()
key = {"x-api-key": os.environ["ANTHROPIC_API_KEY"]}
where = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages"
said = json.load(urllib.request.urlopen(urllib.request.Request(where, body, key)))
print(said["content"][0]["text"])
"""


def test_the_examples_recipe_has_these_options() -> None:
    recipe = load_recipe(EXAMPLE / "recipe.yaml")
    driver = recipe.experts["reasoning"].domain.driver
    assert driver.name == "harness"
    Harness(**driver.options)


async def run(say: Any, **options: Any) -> Rollout:
    script = Script(say)
    host = SessionHost(script.generate, TextChat(), attempt_of(PROBLEM))
    driver = build("harness", options, None, 1)
    return await driver.run(PROBLEM, host)


async def test_the_example_asks_twice_and_its_file_is_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    answers = iter(["four", "five"])
    rollout = await run(
        lambda prompt: next(answers),
        command=["python", "ask_twice.py"], program="ask_twice", answer_file="answer.txt",
    )  # fmt: skip
    sys.modules.pop("ask_twice", None)
    assert rollout.status is Status.COMPLETED, rollout.transcript.reason
    assert rollout.transcript.answer == "five"
    (sample,) = rollout.samples
    assert "".join(map(chr, sample.tokens[sample.loss_mask])) == "four\0five\0"
    note = cast("dict[str, Any]", sample.metadata["session"])
    assert note["whole"]["asked"] == {"temperature": [0.2]}
    assert [turn["kind"] for turn in note["turns"]] == ["first", "continued"]


async def test_it_reaches_the_gateway_alone_and_has_the_problem_without_its_reference() -> None:
    code = ASKS + LEAVES.format(port=22)
    rollout = await run(
        lambda prompt: "hello", command=["python", "-c", code], collect=["files.txt"]
    )
    assert rollout.status is Status.COMPLETED, rollout.transcript.reason
    found = rollout.transcript.files["files.txt"]
    assert found.startswith("x{")
    assert "2+2" in found
    assert "secret" not in found


@pytest.mark.parametrize(
    ("say", "options", "status", "reason"),
    [
        ("hi", {"command": ["python", "-c", ASKS + "while True: pass"], "seconds": 3.0},
         Status.TRUNCATED, "time limit of 3 s"),
        ("hi", {"command": ["python", "-c", ASKS + "raise SystemExit(3)"]},
         Status.FAILED, "harness: exit code 3: hi"),
        ("?broken", {"command": ["python", "-c", ASKS]}, Status.MALFORMED, "broken call"),
        ("hi", {"command": ["python", "-c", "print(1)"]},
         Status.FAILED, "the harness had no answer of the policy"),
        ("hi", {"command": ["python", "-c", ASKS * 2], "turns": 1},
         Status.TRUNCATED, "limit of 1 turns"),
    ],
)  # fmt: skip
async def test_how_a_rollout_ends(
    say: str, options: dict[str, Any], status: Status, reason: str
) -> None:
    rollout = await run(lambda prompt: say, **options)
    assert (rollout.status, rollout.transcript.reason) == (status, reason)


async def test_a_secret_that_a_program_writes_is_kept_by_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SHOP_TOKEN", "canary-123456")
    tells = (
        "import os, sys\ntext = os.environ['TOKEN'] + os.environ['PLAIN_KEY']\n"
        "open('a.txt', 'w').write(text)\nsys.exit(text)"
    )
    rollout = await run(
        lambda prompt: "four", command=["python", "-c", ASKS + tells], collect=["a.txt"],
        env={"TOKEN": "secret:SHOP_TOKEN", "PLAIN_KEY": "none"},
    )  # fmt: skip
    assert rollout.transcript.files == {"a.txt": "$TOKENnone"}
    assert rollout.transcript.reason == "harness: exit code 1: $TOKENnone"


def test_wrong_options_are_named() -> None:
    for options, said in (
        ({"command": "python x.py"}, "give a list"),
        ({"command": ["x"], "seconds": 0}, "seconds"),
        ({"command": ["x"], "answer_file": "/etc/passwd"}, "no path of a file in a sandbox"),
    ):
        with pytest.raises(InputError, match=said):
            Harness(**cast("dict[str, Any]", options))
