"""Many attacks in every kind of sandbox, by one process and by one of many, by root and by a user;
and what a sandbox may hold of the machine's memory and time.

Attacks that take a test each are in `test_sandbox_attacks.py`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

import psutil
import pytest

from infra.sandbox.kinds import bubblewrap, process
from infra.sandbox.sandbox import Limits, SandboxRefused, Snapshot
from tests.parts.machine import until
from tests.parts.sandbox_attacks import AMONG_MANY, IN_A_CONTAINER, PROGRAM, attacks
from tests.parts.sandbox_kinds import FOR_ATTACKS, starting

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("kind", [*FOR_ATTACKS, "bubblewrap of one process"])
def test_none_of_many_attacks_works(kind: str) -> None:
    """Tried by one process, and where the kind allows it by one of many; by root, where it runs the
    tests, who is nobody inside."""
    assert len(attacks()) >= 190
    core, modes = Path("/proc/sys/kernel/core_pattern"), _modes()
    before = core.read_text()
    many = 64 if kind in ("bubblewrap", "container") else 1
    with starting(kind.partition(" ")[0]) as start:
        sandbox = start(Limits(60.0, processes=many, memory=1 << 30))
        try:
            told = sandbox.exec(["python", "-c", PROGRAM])
        finally:
            sandbox.stop()
    known = (AMONG_MANY if many > 1 else set()) | (IN_A_CONTAINER if kind == "container" else set())
    worked = {line.removeprefix("worked: ") for line in told.stdout.splitlines()} - known
    assert (worked, told.stderr) == ({"tried"}, "")
    assert (core.read_text(), _modes()) == (before, modes)


@pytest.mark.parametrize("kind", ["process", "bubblewrap"])
def test_none_of_many_attacks_works_for_another_user(kind: str) -> None:
    """Root tries them as a user without rights, with the machine's own Python: that user may not
    be able to read this one."""
    python = shutil.which("python3", path="/usr/bin:/bin")
    if os.geteuid() != 0 or python is None:
        pytest.skip("needs root, which can be another user, and a Python of the machine")
    tried = [python, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
    if subprocess.run(tried, check=False, user=1234, cwd="/").returncode:
        pytest.skip(f"{python} is older than 3.11")
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from infra.sandbox.kinds import bubblewrap, process\n"
        "from infra.sandbox.sandbox import Limits\n"
        f"kind, program = {kind!r}, {PROGRAM!r}\n"
        "numbers = (1, 64) if kind == 'bubblewrap' else (1,)\n"
        "for many in numbers:\n"
        "  start = bubblewrap.start if kind == 'bubblewrap' else process.start\n"
        "  with start(Limits(60.0, processes=many, memory=1 << 30)) as sandbox:\n"
        "    told = sandbox.exec(['python', '-c', program])\n"
        "    print(many, *told.stdout.splitlines(), told.stderr)\n"
    )
    with tempfile.TemporaryDirectory() as home:
        os.chown(home, 1234, 1234)
        done = subprocess.run(
            [python, "-c", code], capture_output=True, text=True, timeout=120, check=False,
            user=1234, group=1234, extra_groups=[], cwd="/",
            env={"TRIBUTARY_HOME": home, "TMPDIR": home, "PATH": os.environ["PATH"]},
        )  # fmt: skip
    if "No module named" in done.stderr:
        pytest.skip(f"{python} lacks a package: {done.stderr.strip().splitlines()[-1]}")
    lines = [line.strip() for line in done.stdout.splitlines()]
    many = " ".join(f"worked: {name}" for name in AMONG_MANY)
    expected = ["1 tried", f"64 {many} tried"] if kind == "bubblewrap" else ["1 tried"]
    assert (lines, done.stderr) == (expected, "")


def _modes() -> list[int]:
    paths = ("/dev/null", "/dev/zero", "/dev/full", "/dev/urandom", os.__file__)
    return [os.stat(path).st_mode for path in paths]


def test_a_program_is_nobody_outside_too() -> None:
    if why := bubblewrap.refusal():
        pytest.skip(why)
    for start in (bubblewrap.start, process.start):
        with start(Limits(30.0, processes=2 if start is bubblewrap.start else 1)) as sandbox:
            known = {child.pid for child in psutil.Process().children(True)}
            work = threading.Thread(
                target=sandbox.exec, args=(["python", "-c", "import time; time.sleep(2)"],)
            )
            work.start()
            expected = os.geteuid() or 65534
            # A program is root for a moment, until it has become nobody.
            until(lambda: expected in _users_of_children(known), 10)  # noqa: B023
            work.join()


def _users_of_children(known: set[int]) -> set[int]:
    """Users on this machine of the processes that began since."""
    children = psutil.Process().children(True)
    return {child.uids().effective for child in children if child.pid not in known}


@pytest.mark.parametrize("kind", FOR_ATTACKS)
def test_no_memory_is_held_beyond_the_addresses_that_count(kind: str) -> None:
    """Memory that is shared without a file stays while one page of it has an address, and was told
    of nowhere: 1.7 GiB of a program that may have 256 MiB."""
    many = 64 if kind in ("bubblewrap", "container") else 1
    code = (
        "import ctypes as c\nlibc = c.CDLL(None)\nlibc.mmap.restype = c.c_void_p\nheld = 0\n"
        "for _ in range(10):\n"
        "  address = libc.mmap(None, c.c_size_t(64 << 20), 3, 0x21, -1, c.c_long(0))\n"
        "  if address == 2**64 - 1: break\n"
        "  libc.madvise(c.c_void_p(address), c.c_size_t(64 << 20), 23)\n"
        "  libc.munmap(c.c_void_p(address + 4096), c.c_size_t((64 << 20) - 4096))\n"
        "  held += 64\n"
        "print(held)"
    )
    with starting(kind) as start:
        sandbox = start(Limits(10.0, processes=many, memory=256 << 20, resident=256 << 20))
        try:
            assert sandbox.exec(["python", "-c", code]).stdout == "0\n"
            files = (
                "import mmap\nwith open('x', 'w+b') as f:\n  f.write(b'1' * 4096)\n  f.flush()\n"
            )
            files += "  print(mmap.mmap(f.fileno(), 0)[:2], len(mmap.mmap(-1, 9, 0x22)))"
            assert sandbox.exec(["python", "-c", files]).stdout == "b'11' 9\n"
        finally:
            sandbox.stop()


_SCAN = """
import ctypes as c, os, re
libc = c.CDLL(None)
libc.sbrk.restype = c.c_void_p
near = [libc.sbrk(c.c_long(0)), id(object()), c.cast(libc.free, c.c_void_p).value]
page, looked, found = os.open('page', os.O_RDWR | os.O_CREAT), 0, set()
for address in near:
    for number in range((address >> 12) - (64 << 8), (address >> 12) + (64 << 8)):
        os.lseek(page, 0, 0)
        if libc.write(page, c.c_void_p(number << 12), 4096) == 4096:
            os.lseek(page, 0, 0)
            content, looked = os.read(page, 4096), looked + 1
            found |= set(re.findall(b'[A-Z]{4,}(?=-of-earlier)', content))
print(looked > 100, sorted(found))
"""


@pytest.mark.parametrize("kind", FOR_ATTACKS)
def test_a_later_command_s_memory_holds_nothing_of_earlier_ones(kind: str) -> None:
    """A reward may have run hidden tests there before."""
    with starting(kind) as start:
        sandbox = start(Limits(20.0, disk=1 << 20))
        try:
            for _ in range(3):
                sandbox.write("file", b"WRITTN-of-earlier" * 9)
                assert b"WRITTN" in sandbox.read("file")
                sandbox.restore(sandbox.snapshot())
                code = "import sys; print(sys.stdin.read() + 'SAID-of-earlier' * 9)"
                assert (
                    "SAID" in sandbox.exec(["python", "-c", code], stdin=b"TYPED-of-earlier").stdout
                )
            sandbox.restore(Snapshot.of({}))
            assert sandbox.exec(["python", "-c", _SCAN]).stdout == "True []\n"
        finally:
            sandbox.stop()


def test_stopping_its_agent_does_not_stretch_its_time() -> None:
    if why := bubblewrap.refusal():
        pytest.skip(why)
    code = "import os, time\nfor n in (19, 20, 2, 15, 9): os.kill(1, n)\ntime.sleep(20)"
    with bubblewrap.start(Limits(1.0, processes=8, memory=1 << 30)) as sandbox:
        told = sandbox.exec(["python", "-c", code])
        assert (told.status, told.seconds < 1.5) == ("timeout", True)
        zeros = sandbox.exec(["sh", "-c", "head -c 3 /dev/zero | od -An -tx1"])
        assert zeros.stdout == " 00 00 00\n"


def test_socket_buffers_count_as_memory() -> None:
    if why := bubblewrap.refusal():
        pytest.skip(why)
    code = (
        "import socket, time\nheld = [socket.socketpair() for _ in range(200)]\n"
        "for a, b in held:\n  a.setblocking(False)\n  try:\n"
        "    while True: a.send(b'x' * 65536)\n  except BlockingIOError: pass\ntime.sleep(5)"
    )
    limits = Limits(10.0, processes=16, memory=1 << 30, resident=100 << 20, open_files=512)
    with bubblewrap.start(limits) as sandbox:
        told = sandbox.exec(["python", "-c", code])
    assert told.status == "killed"
    assert told.seconds < 5


def test_a_time_limit_holds_to_half_a_second() -> None:
    if why := bubblewrap.refusal():
        pytest.skip(why)
    code = "import os\nfor _ in range(5): os.fork()\nwhile True: pass"
    with bubblewrap.start(Limits(1.0, 60, processes=64, memory=1 << 30)) as sandbox:
        told = sandbox.exec(["python", "-c", code])
    assert told.status == "timeout"
    assert told.seconds < 1.5


@pytest.mark.parametrize("kind", FOR_ATTACKS)
def test_folders_nested_by_the_thousand_end_nothing(kind: str) -> None:
    code = "import os\nfor _ in range(1500): os.mkdir('d'); os.chdir('d')"
    with starting(kind) as start:
        sandbox = start(Limits(20.0))
        try:
            sandbox.exec(["python", "-c", code])
            with contextlib.suppress(SandboxRefused):
                sandbox.restore(sandbox.snapshot())
            sandbox.restore(Snapshot.of({"a": b"1"}))
            assert sandbox.exec(["python", "-c", "print(open('a').read())"]).stdout == "1\n"
        finally:
            sandbox.stop()
