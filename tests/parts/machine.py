"""A machine as a user has it: a home with its stack, a store in S3, the command `tributary`."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import httpx

from infra.access import basic_token

BUCKET = "tributary-e2e"
SECRETS = {
    "AWS_SECRET_ACCESS_KEY": "planted-key-7f3a91c2",
    "AWS_SESSION_TOKEN": "planted-token-b8d204e6",
    "HF_TOKEN": "planted-hub-1c77e0d5",
    "EXTERNAL_FLEET_KEY": "planted-fleet-90ab34f1",
    "OPENAI_API_KEY": "planted-judge-6d2e58b3",
    "GITHUB_TOKEN": "planted-tool-e41f07a9",
    "MCP_TOKEN": "planted-mcp-57c0b3d8",
    "USER_KEY": "planted-user-c92e14fa",
}
"""used by every part that reaches the store, or by some, and to be written down by none"""
STORE = f"s3://{BUCKET}/store"
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")
"""as a company's network sets them; nobody answers there, so nothing of ours may ask it"""
SMOKE = (f"storage.root={STORE}", "unified.path.rl.steps=8")
"""changes of cpu-smoke: its last training takes long enough to be killed in"""


class Machine:
    """A home with its stack, and a store in S3."""

    def __init__(self, home: Path, s3: str) -> None:
        self.env = os.environ | {
            "TRIBUTARY_HOME": str(home),
            "AWS_ENDPOINT_URL": s3,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
            **SECRETS,
            **dict.fromkeys(PROXIES, "http://127.0.0.1:9"),
            "ALL_PROXY": "socks5://127.0.0.1:9",
        }
        self.said: list[str] = []
        """what the commands that were called printed"""
        self.s3 = boto3.client(
            "s3", endpoint_url=s3, region_name="us-east-1",
            aws_access_key_id="test", aws_secret_access_key="test",
        )  # fmt: skip
        self.program = str(Path(sys.executable).parent / "tributary")

    @contextmanager
    def running(self) -> Generator[Machine]:
        """With its stack up, which ends with its home whatever happens."""
        try:
            self.call("up", timeout=300)
            yield self
        finally:
            subprocess.run([self.program, "down"], env=self.env, timeout=180, check=False)
            shutil.rmtree(self.env["TRIBUTARY_HOME"], ignore_errors=True)

    def call(self, *arguments: str, timeout: float = 900) -> str:
        done = subprocess.run(
            [self.program, *arguments], env=self.env, capture_output=True, text=True,
            timeout=timeout, check=False,
        )  # fmt: skip
        self.said += [done.stdout, done.stderr]
        assert done.returncode == 0, f"{arguments}: {done.stdout[-3000:]}\n{done.stderr[-6000:]}"
        return done.stdout

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """A command that goes on meanwhile; what it says is in `said_by`."""
        with self._log_of(arguments[0]).open("wb") as output:
            return subprocess.Popen(
                [self.program, *arguments], env=self.env, start_new_session=True,
                stdout=output, stderr=output,
            )  # fmt: skip

    def said_by(self, command: str) -> str:
        return self._log_of(command).read_text(errors="replace")

    def _log_of(self, command: str) -> Path:
        return Path(self.env["TRIBUTARY_HOME"]) / f"test-{command}.log"

    def follow(self, run: str) -> subprocess.Popen[bytes]:
        """`tributary resume RUN`, once it looks on."""
        command = self.start("resume", run)
        until(lambda: "MLflow:" in self.said_by("resume") or command.poll() is not None, 90)
        return command

    @property
    def prefect_api(self) -> str:
        return f"http://127.0.0.1:{self.port('prefect')}/api"

    @property
    def key(self) -> str:
        return (Path(self.env["TRIBUTARY_HOME"]) / "key").read_text()

    @property
    def basic(self) -> dict[str, str]:
        """What a program sends to Prefect and MLflow."""
        return {"Authorization": f"Basic {basic_token(self.key)}"}

    @property
    def bearer(self) -> dict[str, str]:
        """What a program sends to Ray and SGLang."""
        return {"Authorization": f"Bearer {self.key}"}

    def counts(self) -> dict[str, int]:
        """How much there is of what a request that does something would add to."""
        names = ("flow_runs", "deployments", "flows", "work_pools", "block_documents", "variables")
        experiments = "api/2.0/mlflow/experiments/search?max_results=99"
        with httpx.Client(headers=self.basic, trust_env=False, timeout=60) as api:
            found = {
                what: api.post(f"{self.prefect_api}/{what}/count", json={}).raise_for_status()
                for what in names
            }
            url = f"http://127.0.0.1:{self.port('mlflow')}/{experiments}"
            found_experiments = api.get(url).raise_for_status().json()["experiments"]
        url = f"http://127.0.0.1:{self.port('ray_dashboard')}/api/jobs/"
        jobs = httpx.get(url, headers=self.bearer, trust_env=False, timeout=60).raise_for_status()
        counts = {what: reply.json() for what, reply in found.items()}
        return counts | {"experiments": len(found_experiments), "jobs": len(jobs.json())}

    def port(self, service: str) -> int:
        stack = json.loads((Path(self.env["TRIBUTARY_HOME"]) / "stack.json").read_text())
        return stack["ports"][service]

    def report(self, *run: str) -> dict[str, Any]:
        """Of this run, or of the newest."""
        return json.loads(self.call("report", *run, "--json", timeout=60))

    def run_id(self, name: str) -> str:
        """Of the oldest run of this name, or of the recipe; empty until it is on record."""
        return next(iter(self.runs(name)), "")

    def runs(self, name: str) -> list[str]:
        """Ids of the runs of this name, or of the recipe of this name; the oldest first."""
        runs = Path(self.env["TRIBUTARY_HOME"]) / "runs"
        entries = [json.loads(file.read_text()) for file in runs.glob("*.json")]
        entries.sort(key=lambda entry: entry["created"])
        return [e["run"] for e in entries if name in (e["name"], e["recipe"])]

    def state(self, run: str) -> dict[str, Any]:
        """A run's state as the store has it."""
        path = f"store/runs/{self.run_id(run)}/state.json"
        return json.load(self.s3.get_object(Bucket=BUCKET, Key=path)["Body"])

    def recorded(self, run: str, name: str) -> dict[str, Any]:
        """A file of a run's record as the store has it."""
        path = f"store/runs/{run}/{name}"
        return json.load(self.s3.get_object(Bucket=BUCKET, Key=path)["Body"])

    def stage(self, run: str, stage: str) -> dict[str, Any]:
        """A stage's record as the store has it; empty before it is looked at."""
        path = f"store/runs/{self.run_id(run)}/stages/{stage}.json"
        try:
            return json.load(self.s3.get_object(Bucket=BUCKET, Key=path)["Body"])
        except self.s3.exceptions.NoSuchKey:
            return {}

    def attempts(self, stage: dict[str, Any]) -> int:
        """How many attempts at a stage were ever claimed."""
        prefix = f"store/attempts/{stage['kind']}/{stage['digest'][:12]}/"
        listed = self.s3.list_objects_v2(Bucket=BUCKET, Prefix=prefix)
        return sum(entry["Key"].endswith(".claim.json") for entry in listed.get("Contents", []))


@contextmanager
def network(*, is_changed: bool) -> Generator[None]:
    """This machine's network, which whoever changes it has alone. A browser drops what it is
    loading as an address comes or goes (net::ERR_NETWORK_CHANGED), and its page stays empty."""
    held = os.open("/proc/self/ns/net", os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX if is_changed else fcntl.LOCK_SH)
        yield
    finally:
        os.close(held)


def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """Looks often at first: most of what is waited for comes soon."""
    deadline, pause = time.monotonic() + seconds, 0.02
    while not condition():
        assert time.monotonic() < deadline, "the condition never came true"
        time.sleep(pause)
        pause = min(1.2 * pause, 0.5)


def settings(name: str, seed: int) -> list[str]:
    """Arguments of a run with this name and seed whose store is in S3."""
    changes = [f"seed={seed}", *SMOKE]
    return ["--name", name, *(part for change in changes for part in ("--set", change))]
