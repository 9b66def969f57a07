"""Three hosts with a stack over them, a store that all reach, and runs of one recipe on them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tests.parts.s3_services import Service
from tests.programs.hosts.machines import CLI, Machine

Mode = Literal["synchronous", "asynchronous"]

_RECIPE = Path(__file__).with_name("recipe.yaml")
_BUCKET = "hosts"
_KEY = "a-key-for-these-hosts-only"
_CHANGES: dict[Mode, Sequence[str]] = {
    "synchronous": (),
    "asynchronous": ("determinism=close", "experts.general.path.rl.max_staleness=2"),
}
_SHARED = ("base", "sft")
"""stages whose artifacts a run may begin with"""
_RL_S = 900.0
_LOOK_S = 0.3
_TRIES = 4
SEEN_S = 180.0
"""until the head takes a host that is silent for lost; Ray asks it a few times"""


@dataclass(frozen=True, slots=True)
class Ran:
    """A run of the recipe up to RL."""

    store: Path
    """a copy of what it left in the store"""
    seconds: float
    problem: str
    """the end of its output if it failed, else empty"""

    @property
    def attempts(self) -> int:
        """At RL."""
        return len(list(self.store.glob("attempts/rl/*/*.claim.json")))


class Ground:
    """The first host is the head."""

    def __init__(self, hosts: Sequence[Machine], service: Service, work: Path) -> None:
        self.head, *self.others = hosts
        self._service, self._client, self._work = service, service.client, work
        self._client.create_bucket(Bucket=_BUCKET)
        for host in hosts:
            host.env |= _environment(service)

    def start(self) -> None:
        self.head.env["TRIBUTARY_HOST"] = self.head.address
        _up(self.head)

    def join(self, host: Machine) -> None:
        _up(host, "--join", self.status()["head"])

    def complete(self) -> list[str]:
        """Have all hosts in the cluster; returns the names of those that were not."""
        alive = {host["address"] for host in self.status()["hosts"] if host["is_alive"]}
        missing = [host for host in self.others if host.address not in alive]
        for host in missing:
            if not host.is_running:
                host.boot()
            self.join(host)
        return [host.name for host in missing]

    def status(self) -> dict[str, Any]:
        return json.loads(self.head.tributary("status", "--json"))

    def seconds_until(self, count: int) -> float:
        """Until the head knows of so many hosts, no more and no fewer; -1 if it never does."""
        began = time.monotonic()
        while time.monotonic() < began + SEEN_S:
            if sum(host["is_alive"] for host in self.status()["hosts"]) == count:
                return time.monotonic() - began
            time.sleep(1.0)
        return -1.0

    def run(
        self, name: str, mode: Mode, begins_as: str = "", strike: Callable[[], object] | None = None
    ) -> Ran:
        """The recipe, whose artifacts go to a store of this name; `begins_as` is that of a run
        whose base and SFT it shares. `strike` is called once RL has trained a step; it is a
        problem if RL is over by then."""
        if begins_as:
            self._share(begins_as, name)
        written = self.head.work / "tmp" / _RECIPE.name
        shutil.copy(_RECIPE, written)
        settings = [f"storage.root=s3://{_BUCKET}/{name}", *_CHANGES[mode]]
        changed = [word for setting in settings for word in ("--set", setting)]
        began = time.monotonic()
        run = self.head.start(
            sys.executable, *CLI, "run", f"/tmp/{_RECIPE.name}", "--until", "general-rl", *changed
        )
        problem = ""
        try:
            if strike is not None:
                if self._await(run, lambda: self.has_trained(name)):
                    strike()
                else:
                    problem = "RL was over before it could be disturbed: "
            output, _ = run.communicate(timeout=_RL_S)
            problem += output[-1500:] if problem or run.returncode else ""
        except subprocess.TimeoutExpired:
            problem = f"it was not over after {_RL_S:.0f} s"
        finally:
            run.kill()
        self._copy(name)
        return Ran(self.store(name), time.monotonic() - began, problem)

    def _await(self, run: subprocess.Popen[str], came: Callable[[], bool]) -> bool:
        """False when the run ended before."""
        while run.poll() is None:
            if came():
                return True
            time.sleep(_LOOK_S)
        return False

    def has_claimed(self, name: str) -> bool:
        """Whether RL has begun in the run of this name."""
        return bool(self._keys(f"{name}/attempts/rl/"))

    def has_trained(self, name: str) -> bool:
        """Whether its RL has a checkpoint."""
        keys = self._keys(f"{name}/checkpoints/rl/")
        return any(key.endswith("manifest.json") for key in keys)

    def _share(self, name: str, other: str) -> None:
        for kind in _SHARED:
            for key in self._keys(f"{name}/artifacts/{kind}/"):
                copied = f"{other}/{key.removeprefix(f'{name}/')}"
                source = {"Bucket": _BUCKET, "Key": key}
                self._client.copy_object(Bucket=_BUCKET, Key=copied, CopySource=source)

    def store(self, name: str) -> Path:
        """What a run of this name left in the store."""
        return self._work / "stores" / name

    def _copy(self, name: str) -> None:
        for key in self._keys(f"{name}/"):
            path = self._work / "stores" / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self._client.get_object(Bucket=_BUCKET, Key=key)["Body"].read())

    def _keys(self, prefix: str) -> list[str]:
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=_BUCKET, Prefix=prefix
        )
        return [entry["Key"] for page in pages for entry in page.get("Contents", [])]


def _up(host: Machine, *arguments: str) -> None:
    """Repeated as a person would: Ray gives a node 30 s to start, however busy the machine is."""
    for tries_left in reversed(range(_TRIES)):
        try:
            host.tributary("up", *arguments)
            return
        except RuntimeError:
            if not tries_left:
                raise


def _environment(service: Service) -> dict[str, str]:
    """Of every command on every host."""
    pinned = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "TOKENIZERS_PARALLELISM", "HF_HUB_OFFLINE")
    return {name: os.environ[name] for name in pinned} | {
        "TRIBUTARY_KEY": _KEY,
        "DO_NOT_TRACK": "1",
        "AWS_ENDPOINT_URL": service.endpoint,
        "AWS_ACCESS_KEY_ID": service.access_key,
        "AWS_SECRET_ACCESS_KEY": service.secret_key,
        "AWS_DEFAULT_REGION": service.region,
    }
