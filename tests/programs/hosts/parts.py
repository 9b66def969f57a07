"""What is tried on the hosts, part by part; each gives rows."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path

from tests.programs.bench.rows import Row
from tests.programs.chaos.compare import broken_promises, differences
from tests.programs.hosts.cells import MODES, Cell
from tests.programs.hosts.ground import Ground, Mode, Ran
from tests.programs.hosts.machines import ROOT, Machine
from tests.programs.hosts.on_head import Facts

Part = Callable[[Ground], Iterable[Row]]

_SHARDS = {"__0_0.distcp", "__1_0.distcp"}
"""of a checkpoint: one file of each rank"""
_KINDS = {
    "trainer ranks": "ray::TrainerRank",
    "servers": "sglang::scheduler",
    "rollout workers": "ray::RolloutWorker",
}
"""what the command lines of their processes contain"""
_PARTS = ("raylet", "gcs_server", "ray::", "sglang::", "process_parent")
"""the same of all that a host may have"""


def told(ground: Ground, parts: Iterable[Part]) -> Iterable[Row]:
    """What the parts find, also printed at once; a part that cannot go on is a row that fails."""
    for part in parts:
        try:
            for row in part(ground):
                bound = "" if row.holds else f"  FAILS: {row.bound}"
                print(f"{row.name}: {row.value:.4g} {row.unit} {row.note}{bound}", flush=True)
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


def starting(ground: Ground) -> Iterable[Row]:
    ground.start()
    yield _seen("the head is there", ground, 1)


def on_one(ground: Ground) -> Iterable[Row]:
    for mode, begins_as in zip(MODES, ("", alone(MODES[0])), strict=True):
        ran = ground.run(alone(mode), mode, begins_as)
        yield Row(f"one host, {mode}: failures", bool(ran.problem), "", 0, at_most=True,
                  note=ran.problem)  # fmt: skip
        yield Row(f"one host, {mode}: until RL was done", ran.seconds, "s")


def joining(ground: Ground) -> Iterable[Row]:
    began = time.monotonic()
    for host in ground.others:
        ground.join(host)
    yield Row("joining, a host", (time.monotonic() - began) / len(ground.others), "s")
    yield _seen("all hosts are known", ground, 1 + len(ground.others))


def on_all(
    ground: Ground, modes: Iterable[Mode] = MODES, *, like_one: bool = True
) -> Iterable[Row]:
    """`like_one`: compared with what `on_one` has made."""
    begins_as = ""
    for mode in modes:
        found: dict[str, int] = {}

        def look(found: dict[str, int] = found) -> None:
            found.update(_hosts_of(ground))

        ran = ground.run(spread(mode), mode, begins_as, look)
        begins_as, what = spread(mode), f"three hosts, {mode}"
        reference = ground.store(alone(mode)) if like_one else ran.store
        yield _unlike(f"{what}: other results than on one", ran, mode, reference)
        yield Row(f"{what}: until RL was done", ran.seconds, "s")
        for name in _KINDS:
            yield Row(f"{what}: hosts with {name}", found.get(name, 0), "hosts", 2)


def disturbed(ground: Ground, cell: Cell) -> Iterable[Row]:
    """A run that shares base and SFT with the undisturbed one, and has to end as that did."""
    of, mode, reference = cell.disturbance, cell.mode, spread(cell.mode)
    if missing := ground.complete():
        print(f"had left the cluster, and joined again: {', '.join(missing)}", flush=True)
    host, there = ground.others[of.host], list[str]()

    def strike() -> None:
        there.extend(_kinds_on(host))
        if of.strike is not None:
            of.strike(ground, host)

    with of.around(ground, host, cell.name) if of.around else nullcontext():
        ran = ground.run(cell.name, mode, reference, strike)
    wrong = f"{cell.name}: rollouts lost or doubled, other results"
    yield _unlike(wrong, ran, mode, ground.store(reference))
    yield Row(f"{cell.name}: until RL was done", ran.seconds, "s", note=f"{ran.attempts} attempts")
    engines = {"trainer ranks", "servers"} & set(there)
    yield Row(f"{cell.name}: trainer ranks and servers on the host", len(engines), "kinds",
              1 if of.host else 2, note=", ".join(there))  # fmt: skip


def engines(ground: Ground) -> Iterable[Row]:
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
    shards = _SHARDS & set(facts.checkpoint_files)
    yield Row("ranks whose part of a checkpoint reached the job", len(shards), "ranks", 2)
    stored = _SHARDS & set(facts.stored_files)
    yield Row("parts of a checkpoint in the store", len(stored), "ranks", 2)
    through = _SHARDS & set(facts.files_through_head)
    yield Row("parts that went there through the head", len(through), "ranks", 1, at_most=True)
    served = facts.versions.count("1")
    yield Row(f"servers with the weights published by {facts.transport}", served, "servers", 2)
    weights = len(set(facts.checksums))
    yield Row("different weights among them", weights, "checksums", 1, at_most=True)
    same = float(facts.exported_equal)
    yield Row("a greedy sample as before saving, loading and publishing", same, "of 1", 1)


def leaving(ground: Ground) -> Iterable[Row]:
    left, killed = ground.others
    left.tributary("down")
    yield _seen("one went down: two hosts are known", ground, 2)
    killed.kill()
    yield _seen("one was killed with its network: one is known", ground, 1)
    ground.complete()
    yield _seen("they came back: three hosts are known", ground, 3)
    yield from ending(ground)


def ending(ground: Ground) -> Iterable[Row]:
    ground.complete()  # the last cell may have killed one
    for host in (*ground.others, ground.head):
        host.tributary("down")
        left = [line for line in host.processes().values() if any(part in line for part in _PARTS)]
        yield Row(f"processes left on {host.name} by `down`", len(left), "", 0, at_most=True,
                  note=", ".join(left))  # fmt: skip


def _unlike(name: str, ran: Ran, mode: Mode, reference: Path) -> Row:
    """How many things a run did not keep of what its mode promises."""
    found = ran.problem
    if not found:
        compare = differences if mode == "synchronous" else broken_promises
        found = compare(reference, ran.store)
    count = found.count(", ") + 1 if found else 0
    return Row(name, count, "problems", 0, at_most=True, note=found)


def _kinds_on(host: Machine) -> list[str]:
    lines = list(host.processes().values())
    return [name for name, title in _KINDS.items() if any(title in line for line in lines)]


def _hosts_of(ground: Ground) -> dict[str, int]:
    """On how many hosts there are processes of each kind."""
    found = [_kinds_on(host) for host in (ground.head, *ground.others)]
    return {name: sum(name in kinds for kinds in found) for name in _KINDS}


def _seen(name: str, ground: Ground, count: int) -> Row:
    seconds = ground.seconds_until(count)
    return Row(name, float(seconds >= 0), "of 1", 1, note=f"after {seconds:.0f} s")
