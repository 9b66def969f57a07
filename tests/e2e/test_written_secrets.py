"""A planted secret: used by every part that reaches the store, and written down by none."""

from __future__ import annotations

import resource
import signal
import subprocess
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from infra.home import runtime_dir
from tests.parts.json_server import json_server
from tests.parts.machine import BUCKET, SECRETS, STORE, Machine, settings, until

STARTERS = (
    "bin/tributary ",
    "prefect worker",
    "bin/prefect ",
    "prefect.runner",
    "prefect/runner/",
    "prefect.engine",
)
"""in the arguments of commands, of the worker, and of flows with their hooks"""

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def test_a_planted_secret_is_nowhere(
    machine: Machine,
    smoke: dict[str, Any],
    command_lines: set[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    del smoke  # there has been a run, at least that one
    monkeypatch.setenv("TRIBUTARY_HOME", machine.env["TRIBUTARY_HOME"])
    machine.call("check", "cpu-smoke", *settings("x", 3)[2:], timeout=120)
    machine.call("report", "first", "--json", timeout=120)
    machine.call("secret", "planted", *SECRETS, timeout=120)
    machine.call("export", "first/unified-rl", str(tmp_path / "model"), timeout=300)
    machine.call("artifacts", "--run", "first", "--json", timeout=120)
    _runs_with_parts_that_repeat_their_secrets(machine, tmp_path)
    _crashes(machine, tmp_path)

    answers = _answers(machine)
    assert any("tasks.durable.job" in line for line in command_lines), "a stage ran while we looked"
    assert '"submission_id"' in answers
    assert any(key.endswith("manifest.json") for key in _objects(machine))
    places = [Path(machine.env["TRIBUTARY_HOME"]), runtime_dir(), tmp_path]
    files = [file for place in places for file in place.rglob("*") if file.is_file()]
    looked_at = {"mlflow.db", "prefect.db", "stack.json", "README.md", "lineage.json"}
    assert looked_at <= {file.name for file in files}
    said = "".join(machine.said) + answers
    for name, secret in SECRETS.items():
        assert secret not in said, f"{name} is in what was printed or answered"
        assert not [line for line in command_lines if secret in line], f"{name}: a command line"
    assert [found for file in files if (found := _secrets(file, _bytes(file)))] == []
    bodies = ((key, _body(machine, key)) for key in _objects(machine))
    assert [found for key, body in bodies if (found := _secrets(key, body))] == []


SHOP = """
import os, sys
from mcp.server.fastmcp import FastMCP
server = FastMCP("shop")
token = os.environ["TOKEN"]
print(token, file=sys.stderr)

@server.tool(name=f"price-{token}", description=f"What a thing costs; ask with {token}.")
def price(name: str) -> str:
    return f"3 euros, {token}"

server.run("stdio")
"""
WITH_TOOLS = """
name: shop
hooks: [shop.py]
base: {random: {hidden_size: 32, layers: 1, heads: 2, kv_heads: 1, head_dim: 16, ffn_size: 32}}
experts:
  shop:
    domain:
      max_turns: 3
      max_new_tokens: 400
      curriculum:
        name: files
        options: {sources: {files: [asks.jsonl]}, shares: {heldout: 0.3}}
        mcp: {command: [python, shop.py], program: shop, env: {TOKEN: "secret:MCP_TOKEN"}}
      user:
        system: You want to buy something.
        api: {url: "http://127.0.0.1:<PORT>/v1", model: buyer, key: "secret:USER_KEY"}
      rewards: [{name: exact, outcome: true}]
    path: [{rollout: {problems: 8, group_size: 8}}]
evaluate: {problems: 2}
"""


def _runs_with_parts_that_repeat_their_secrets(machine: Machine, folder: Path) -> None:
    """A run whose tools and whose user say in each answer what they were trusted with."""
    asked: list[Any] = []

    def answer(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        asked.append(body)
        reply = {"role": "assistant", "content": f"Use {SECRETS['USER_KEY']}, please."}
        return 200, {"choices": [{"message": reply, "finish_reason": "stop"}]}

    (folder / "shop.py").write_text(SHOP)
    rows = (f'{{"question": "What does thing {n} cost?", "answer": "3"}}\n' for n in range(40))
    (folder / "asks.jsonl").write_text("".join(rows))
    with json_server(answer) as port:
        (folder / "shop.yaml").write_text(WITH_TOOLS.replace("<PORT>", str(port)))
        store = f"storage.root={STORE}"
        machine.call("run", str(folder / "shop.yaml"), "--name", "shop", "--set", store)
    shown = machine.call("rollouts", "shop-rollout", "--run", "shop", "--limit", "99", timeout=120)
    assert asked, "the user was asked"
    assert "secret:USER_KEY" in shown
    assert "price-secret:MCP_TOKEN" in shown, "the template writes names of tools"


def _crashes(machine: Machine, folder: Path) -> None:
    """A command with all secrets ends as by a fault of its own, where dumps are welcome."""
    line = f"ulimit -c unlimited; exec {machine.program} top --every 1"
    command = subprocess.Popen(
        ["sh", "-c", line], env=machine.env, cwd=folder, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        until(lambda: psutil.Process(command.pid).name() != "sh", 60)
        until(lambda: resource.prlimit(command.pid, resource.RLIMIT_CORE)[0] in (0, 1), 60)
        command.send_signal(signal.SIGABRT)
        assert command.wait(30) == -signal.SIGABRT
    finally:
        command.kill()
        command.wait(30)


def _answers(machine: Machine) -> str:
    """What Ray, Prefect and MLflow tell those who have the key, of runs and of secret blocks."""
    ray = f"http://127.0.0.1:{machine.port('ray_dashboard')}/api/jobs/"
    mlflow = f"http://127.0.0.1:{machine.port('mlflow')}/api/2.0/mlflow/runs/search"
    asked: list[tuple[str, dict[str, Any]]] = [
        (f"{machine.prefect_api}/{what}/filter", {"limit": 200})
        for what in ("block_documents", "flow_runs", "task_runs", "deployments", "artifacts")
    ]
    asked += [(f"{machine.prefect_api}/logs/filter", {"limit": 200, "sort": "TIMESTAMP_DESC"})]
    asked += [(mlflow, {"experiment_ids": ["1"], "max_results": 500})]
    with httpx.Client(headers=machine.basic, trust_env=False, timeout=60) as client:
        told = [client.post(url, json=body).raise_for_status().text for url, body in asked]
    assert '"planted"' in told[0], "the block is there"
    return "".join([httpx.get(ray, headers=machine.bearer, trust_env=False).text, *told])


def test_only_what_starts_jobs_has_secrets_that_jobs_do_not_all_need(
    machine: Machine, smoke: dict[str, Any], secret_holders: dict[str, set[tuple[str, str]]]
) -> None:
    """A person's command has them, and Prefect's worker, which starts flows. Ray, its workers, the
    servers of models, MLflow and Prefect's own server have the store's at most."""
    del smoke
    own = machine.env["TRIBUTARY_HOME"]
    for name, found in secret_holders.items():
        # Chromium's own watchers leave the browser that a test started.
        holders = [line for home, line in found if home == own and "chromium" not in line]
        if name.startswith("AWS_"):
            others = [line for line in holders if "uvicorn" in line or "mlflow" in line]
            assert [line for line in holders if "ray::" in line], "Ray's workers were looked at"
        else:
            given = (*STARTERS, "shop.py") if name == "MCP_TOKEN" else STARTERS
            others = [line for line in holders if not any(part in line for part in given)]
        assert holders, f"{name}: nobody was started with it while we looked"
        assert not others, f"{name}: {sorted(others)}"


def _secrets(place: Path | str, data: bytes) -> list[str]:
    """The names of the secrets in the data, with the place; empty for none."""
    return [f"{name} in {place}" for name, secret in SECRETS.items() if secret.encode() in data]


def _objects(machine: Machine) -> list[str]:
    pages = machine.s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
    return [entry["Key"] for page in pages for entry in page.get("Contents", [])]


def _body(machine: Machine, key: str) -> bytes:
    return machine.s3.get_object(Bucket=BUCKET, Key=key)["Body"].read()


def _bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:  # a log that was rotated away
        return b""
