"""The pool of sandboxes: fresh ones, in bounded number, and none left behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial

import psutil
import pytest

from infra.errors import InputError
from infra.sandbox.kinds import process
from infra.sandbox.pool import Pool, PoolBusy
from infra.sandbox.python import level
from infra.sandbox.sandbox import Limits, SandboxLost

pytestmark = pytest.mark.integration


@pytest.fixture
def pool() -> Iterator[Pool]:
    if not level().holds:
        pytest.skip(f"this machine confines by {level()} only")
    made = Pool(partial(process.start, Limits(seconds=20.0)), warm=2, most=3)
    yield made
    made.close()


def test_each_use_has_a_sandbox_of_its_own(pool: Pool) -> None:
    pool.fill()
    for _ in range(5):
        with pool.taken() as sandbox:
            listed = sandbox.exec(["python", "-c", "import os; print(os.listdir())"])
            assert listed.stdout == "[]\n"
            sandbox.write("left", b"1")
    assert not sandbox.is_running()


def test_no_more_are_in_use_than_may(pool: Pool) -> None:
    with pool.taken(), pool.taken(), pool.taken(), pytest.raises(PoolBusy, match="no sandbox was"):
        pool.taken(seconds=0.05).__enter__()
    with pool.taken(seconds=5):
        pass


def test_many_at_once_share_its_room(pool: Pool) -> None:
    told: list[str] = []

    def use(number: int) -> None:
        with pool.taken() as sandbox:
            told.append(sandbox.exec(["python", "-c", f"print({number})"]).stdout)

    threads = [threading.Thread(target=use, args=(n,)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(told) == sorted(f"{n}\n" for n in range(12))


def test_sandboxes_that_were_killed_while_they_waited_are_not_given(pool: Pool) -> None:
    pool.fill()
    # A former pool's may have ended and not be collected yet.
    own = [c for c in psutil.Process().children() if c.status() != psutil.STATUS_ZOMBIE]
    zygote = next(child for child in own if "zygote.py" in " ".join(child.cmdline()))
    family = zygote.children(recursive=True)
    assert len(family) >= 2
    zygote.kill()
    psutil.wait_procs([zygote, *family], timeout=10)
    with pool.taken() as sandbox:
        assert sandbox.exec(["python", "-c", "print(42)"]).stdout == "42\n"


def test_a_kill_of_any_of_its_processes_ends_all_of_a_sandbox() -> None:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    for victim in range(3):
        sandbox = process.start(Limits(seconds=20.0))
        running = threading.Thread(target=_until_lost, args=(sandbox,))
        running.start()
        deadline = time.monotonic() + 20
        family: list[psutil.Process] = []
        while len(family) < 3 and time.monotonic() < deadline:
            children = psutil.Process().children(recursive=True)
            family = [p for p in children if p.pid not in before and "zygote" not in p.name()]
            family = [p for p in family if p.ppid() != psutil.Process().pid]
            time.sleep(0.02)
        family[victim % len(family)].kill()
        sandbox.stop()
        running.join(20)
        _, alive = psutil.wait_procs(family, timeout=10)
        assert not alive


def _until_lost(sandbox) -> None:
    try:
        sandbox.exec(["python", "-c", "import time; time.sleep(15)"])
    except SandboxLost:
        return


def test_why_none_can_be_started_is_said_at_each_use() -> None:
    def start():
        raise InputError("no kernel")

    pool = Pool(start, warm=1, most=1)
    for _ in range(2):
        with pytest.raises(InputError, match="no kernel"), pool.taken():
            pass
    pool.close()
