"""`make hosts`: a stack over three hosts, which are namespaces of this machine.

Each host has a network, mounts, processes, a home and a cache of its own; the store is S3. Shown,
and written to `build/hosts.json`: that hosts join and leave, that trainer ranks and servers spread
over them and work together, and what of it needs no path on another host. Needs root.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.parts.s3_services import Service, moto
from tests.programs.bench.rows import Row, show, write
from tests.programs.hosts import recipes
from tests.programs.hosts.machines import OUTSIDE, ROOT, Machine, machines
from tests.programs.hosts.on_head import Facts

BUILD = Path("build")
KEY = "a-key-for-these-hosts-only"
_SPREAD, _ALONE = "s3://hosts/spread", "s3://hosts/alone"
SHARDS = {"__0_0.distcp", "__1_0.distcp"}
"""of a checkpoint: one file of each rank"""
SEEN_S = 180.0
"""until the head takes a host that is silent for lost; Ray asks it a few times"""


def main() -> int:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for each request to the store
    with (
        tempfile.TemporaryDirectory(prefix="tr-hosts-", ignore_cleanup_errors=True) as work,
        machines(Path(work), "abc") as hosts,
        moto(OUTSIDE) as service,
    ):
        service.client.create_bucket(Bucket="hosts")
        for host in hosts:
            host.env |= _env(service)
        os.environ |= _env(service)  # to look into the store from here
        rows = _watch(*hosts)
    show(rows, "three hosts")
    write(rows, BUILD / "hosts.json")
    return 0 if all(row.holds for row in rows) else 1


def _watch(head: Machine, *others: Machine) -> list[Row]:
    head.env["TRIBUTARY_HOST"] = head.address
    head.tributary("up")
    address = str(_status(head)["head"])
    began = time.monotonic()
    for host in others:
        host.tributary("up", "--join", address)
    joining = time.monotonic() - began
    rows = [
        _until("hosts of the cluster", head, 3),
        Row("joining, a host", joining / len(others), "s"),
        *_engines(head),
    ]
    began = time.monotonic()
    recipes.run(head, _SPREAD)
    rows.append(Row("base, SFT and RL over three hosts", time.monotonic() - began, "s"))
    left, killed = others
    left.tributary("down")
    rows.append(_until("hosts after one went down", head, 2))
    killed.kill()
    rows.append(_until("hosts after one was killed with its network", head, 1))
    recipes.run(head, _ALONE)
    spread, alone = (recipes.weights(root, head.work / "seen") for root in (_SPREAD, _ALONE))
    differing = [
        name for name in spread.keys() | alone.keys() if spread.get(name) != alone.get(name)
    ]
    rows += [
        Row("files of weights that it made", len(spread), "files", 3),
        Row("of these, other than on one host", len(differing), "files", 0, at_most=True,
            note=", ".join(differing)),
    ]  # fmt: skip
    killed.boot()
    killed.tributary("up", "--join", address)
    rows.append(_until("hosts after it came back", head, 2))
    head.tributary("down")
    return rows


def _engines(head: Machine) -> list[Row]:
    program = [sys.executable, "-m", "tests.programs.hosts.on_head", "s3://hosts/store"]
    # In the stack's environment, as a job is.
    stack = json.loads((head.home / "stack.json").read_text())
    env = {"RAY_ADDRESS": f"{head.address}:{stack['ports']['ray_gcs']}", "RAY_AUTH_MODE": "token"}
    head.env |= env | {
        "RAY_AUTH_TOKEN_PATH": f"/tmp/{head.home.name}/key",
        "PYTHONPATH": str(ROOT),
    }
    facts = Facts(**json.loads(head.run(*program).splitlines()[-1]))
    shards = SHARDS & set(facts.checkpoint_files)
    return [
        Row("hosts of the ranks of one trainer", len(set(facts.rank_hosts)), "hosts", 2),
        Row("hosts of the servers of one fleet", len(set(facts.server_hosts)), "hosts", 2),
        Row("ranks whose part of a checkpoint reached the job", len(shards), "ranks", 2),
        Row(f"servers with the weights published by {facts.transport}",
            facts.versions.count("1"), "servers", 2),
        Row("different weights among them", len(set(facts.checksums)), "checksums", 1,
            at_most=True),
        Row("a greedy sample as before saving, loading and publishing",
            float(facts.exported_equal), "of 1", 1),
    ]  # fmt: skip


def _until(name: str, head: Machine, count: int) -> Row:
    """How many hosts there are once there are so many, or after the bound."""
    began = time.monotonic()
    while (living := _living(head)) != count and time.monotonic() < began + SEEN_S:
        time.sleep(1.0)
    note = f"seen after {time.monotonic() - began:.0f} s"
    return Row(name, abs(living - count), "too many or too few", 0, at_most=True, note=note)


def _living(head: Machine) -> int:
    return sum(host["is_alive"] for host in _status(head)["hosts"])


def _status(head: Machine) -> dict[str, Any]:
    return json.loads(head.tributary("status", "--json"))


def _env(service: Service) -> dict[str, str]:
    return {
        "TRIBUTARY_KEY": KEY,
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "AWS_ENDPOINT_URL": service.endpoint,
        "AWS_ACCESS_KEY_ID": service.access_key,
        "AWS_SECRET_ACCESS_KEY": service.secret_key,
        "AWS_DEFAULT_REGION": service.region,
    }


if __name__ == "__main__":
    sys.exit(main())
