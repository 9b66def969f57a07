"""`make hosts`: a stack over three hosts, which are namespaces of this machine.

    python -m tests.programs.hosts        a recipe, a killed host, a cut network, joining, leaving
    python -m tests.programs.hosts all    the same with every disturbance of `cells`

Each host has a network, mounts, processes, a home and a cache of its own; the store is S3. Written
to `build/hosts.json`. Needs root.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from tests.parts.s3_services import moto
from tests.programs.bench.rows import Row, show, write
from tests.programs.chaos.ground import pin_threads
from tests.programs.hosts.cells import CUT, FURTHER, LOST, disturbed, unlike
from tests.programs.hosts.ground import Ground, Mode
from tests.programs.hosts.machines import OUTSIDE, ROOT, machines
from tests.programs.hosts.on_head import Facts

BUILD = Path("build")
MODES: Sequence[Mode] = ("synchronous", "asynchronous")
SHARDS = {"__0_0.distcp", "__1_0.distcp"}
"""of a checkpoint: one file of each rank"""
PARTS = {
    "trainer ranks": "ray::TrainerRank",
    "servers": "sglang",
    "rollout workers": "ray::RolloutWorker",
}
"""what the command lines of their processes contain"""


def main(arguments: Sequence[str]) -> int:
    pin_threads()
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for each request to the store
    cells = (LOST, CUT, *(FURTHER if "all" in arguments else ()))
    disturbances = [
        partial(disturbed, cell=cell, mode=mode, reference=spread(mode))
        for cell in cells
        for mode in MODES
    ]
    parts = (_alone, _joining, _engines, _spread, *disturbances, _leaving)
    with (
        tempfile.TemporaryDirectory(prefix="tr-hosts-", ignore_cleanup_errors=True) as work,
        machines(Path(work), "abc") as hosts,
        moto(OUTSIDE) as service,
    ):
        rows = list(_told(Ground(hosts, service, Path(work)), parts))
    show(rows, "three hosts")
    write(rows, BUILD / "hosts.json")
    return 0 if all(row.holds for row in rows) else 1


def _told(ground: Ground, parts: Iterable[Callable[[Ground], Iterable[Row]]]) -> Iterable[Row]:
    """What the parts find, also printed at once; a part that cannot go on is a row that fails."""
    for part in parts:
        try:
            for row in part(ground):
                print(f"{row.name}: {row.value:.4g} {row.unit} {row.note}", flush=True)
                yield row
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            print(error, flush=True)
            yield Row("a part that broke", 1, "", 0, at_most=True, note=str(error))


def alone(mode: Mode) -> str:
    """The store of a run on the head alone."""
    return f"alone-{mode}"


def spread(mode: Mode) -> str:
    """That of a run over all hosts."""
    return f"spread-{mode}"


def _alone(ground: Ground) -> Iterable[Row]:
    ground.start()
    for mode, begins_as in zip(MODES, ("", alone(MODES[0])), strict=True):
        ran = ground.run(alone(mode), mode, begins_as)
        yield Row(f"one host, {mode}: failures", bool(ran.problem), "", 0, at_most=True,
                  note=ran.problem)  # fmt: skip
        yield Row(f"one host, {mode}: until RL was done", ran.seconds, "s")


def _joining(ground: Ground) -> Iterable[Row]:
    began = time.monotonic()
    for host in ground.others:
        ground.join(host)
    yield Row("joining, a host", (time.monotonic() - began) / len(ground.others), "s")
    yield _seen("three hosts are known", ground, 3)


def _spread(ground: Ground) -> Iterable[Row]:
    yield from _spread_in(ground, MODES[0], "")
    yield from _spread_in(ground, MODES[1], spread(MODES[0]))


def _spread_in(ground: Ground, mode: Mode, begins_as: str) -> Iterable[Row]:
    found: dict[str, int] = {}
    ran = ground.run(spread(mode), mode, begins_as, lambda: found.update(_hosts_of(ground)))
    what = f"three hosts, {mode}"
    yield unlike(f"{what}: other results than on one", ran, mode, ground.store(alone(mode)))
    yield Row(f"{what}: until RL was done", ran.seconds, "s")
    for name in PARTS:
        yield Row(f"{what}: hosts with {name}", found.get(name, 0), "hosts", 2)


def _hosts_of(ground: Ground) -> dict[str, int]:
    """On how many hosts there are processes of each part."""
    found = [list(host.processes().values()) for host in (ground.head, *ground.others)]
    return {
        name: sum(any(title in line for line in lines) for lines in found)
        for name, title in PARTS.items()
    }


def _engines(ground: Ground) -> Iterable[Row]:
    head = ground.head
    program = [sys.executable, "-m", "tests.programs.hosts.on_head", "s3://hosts/engines"]
    # In the stack's environment, as a job is.
    env = {
        "RAY_ADDRESS": ground.status()["head"],
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": f"/tmp/{head.home.name}/key",
        "PYTHONPATH": str(ROOT),
    }
    facts = Facts(**json.loads(head.run(*program, env=env).splitlines()[-1]))
    yield Row("hosts of the ranks of one trainer", len(set(facts.rank_hosts)), "hosts", 2)
    yield Row("hosts of the servers of one fleet", len(set(facts.server_hosts)), "hosts", 2)
    shards = SHARDS & set(facts.checkpoint_files)
    yield Row("ranks whose part of a checkpoint reached the job", len(shards), "ranks", 2)
    served = facts.versions.count("1")
    yield Row(f"servers with the weights published by {facts.transport}", served, "servers", 2)
    weights = len(set(facts.checksums))
    yield Row("different weights among them", weights, "checksums", 1, at_most=True)
    same = float(facts.exported_equal)
    yield Row("a greedy sample as before saving, loading and publishing", same, "of 1", 1)


def _leaving(ground: Ground) -> Iterable[Row]:
    left, killed = ground.others
    left.tributary("down")
    yield _seen("one went down: two hosts are known", ground, 2)
    killed.kill()
    yield _seen("one was killed with its network: one is known", ground, 1)
    ground.revive(killed)
    yield _seen("it came back: two hosts are known", ground, 2)
    ground.head.tributary("down")


def _seen(name: str, ground: Ground, count: int) -> Row:
    seconds = ground.seconds_until(count)
    return Row(name, float(seconds >= 0), "of 1", 1, note=f"after {seconds:.0f} s")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
