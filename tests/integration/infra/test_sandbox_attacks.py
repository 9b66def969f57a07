"""Attacks on the sandbox: each fails, harms nobody, and leaves the next sample as it was.

What a program may do at all is in `test_sandbox.py`.
"""

from __future__ import annotations

import json
import os
import pickle
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest

import infra.sandbox.python
from infra.processes.leftovers import leftovers_of
from infra.sandbox.confine.launcher import READY
from tests.parts.machine import until
from tests.parts.sandbox_kinds import KINDS, program_runner, starting
from tests.parts.sandboxes import EACH, FOR_ATTACKS, Run, confined

pytestmark = pytest.mark.integration
INFRA = Path(infra.sandbox.python.__file__).parent


def _name_of(confinement: str | tuple[str, ...]) -> str:
    return confinement if isinstance(confinement, str) else "+".join(confinement)


@pytest.fixture(params=[*FOR_ATTACKS, *(KINDS if EACH else [])], ids=_name_of)
def attack(request: pytest.FixtureRequest) -> Iterator[Run]:
    """`attack(code, **limits)`; afterwards a harmless sample runs, and nothing is left behind."""
    if not isinstance(request.param, str):
        yield from _checked(confined(request.param))
        return
    with starting(request.param) as start:
        run = program_runner(start)
        run("")  # starts what stays: the process that forks sandboxes
        yield from _checked(run)


def _checked(run: Run) -> Iterator[Run]:
    folders, processes = _folders(), _processes()
    yield run
    harmless = run("import json, os\nopen('x', 'w').write('1')\nprint(json.loads('[42]')[0])")
    assert (harmless.status, harmless.stdout, harmless.stderr) == ("ok", "42\n", "")
    until(lambda: _folders() <= folders and _processes() <= processes, 10)


def _folders() -> set[Path]:
    """Those of this process: other tests may run beside it."""
    return {path for path in leftovers_of() if f"-{os.getpid()}-" in path.name}


def _processes() -> set[int]:
    """Our descendants that run the launcher, and any that it left to init."""
    own = {p.pid for p in psutil.Process().children(recursive=True)}
    left = [p.pid for p in psutil.process_iter(["ppid"]) if p.info["ppid"] == 1]
    return own | {pid for pid in left if b"launcher.py" in _command(pid)}


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it has ended
        return b""


WORKED = "worked"


def _outcomes(attack: Run, codes: Sequence[str]) -> tuple[dict[str, str], str]:
    """What each of these raises, tried one after the other by one program; and all that it says."""
    program = (
        f"import json\nfound = {{}}\nfor code in {list(codes)!r}:\n"
        f"  try:\n    exec(code, {{}})\n    found[code] = {WORKED!r}\n"
        "  except BaseException as error: found[code] = type(error).__name__\n"
        "print('\\n' + json.dumps(found))"
    )
    result = attack(program)
    assert result.status == "ok", result
    said, _, found = result.stdout.strip().rpartition("\n")
    assert list(json.loads(found)) == list(codes)
    return json.loads(found), said + result.stderr


def test_fork_and_thread_bombs(attack: Run) -> None:
    forks = (
        "import os\nn = 0\nfor _ in range(10**4):\n  try: os.fork()\n  except OSError: n += 1\n"
        "print(n)"
    )
    assert attack(forks).stdout == "10000\n"
    threads = (
        "import threading\nthreading.stack_size(32768)\nwait = threading.Event()\n"
        "while True: threading.Thread(target=wait.wait, daemon=True).start()"
    )
    assert attack(threads, cpu_seconds=2, seconds=4).status in ("error", "killed", "timeout")


def test_a_memory_bomb_in_and_beside_the_address_space(attack: Run) -> None:
    assert "MemoryError" in attack("x = [bytearray(1 << 20) for _ in range(10**5)]").stderr
    aside = "import os\nfor n in range(30): os.ftruncate(os.memfd_create('x'), 10**7)"
    assert "PermissionError" in attack(aside).stderr


@pytest.mark.parametrize(
    "filler",
    [
        "n = 0\nwhile True: open(f'f{n}', 'wb').write(bytes(1 << 19)); n += 1",
        "n = 0\nwhile True: open(f'f{n}', 'w').close(); n += 1",
        "import os\nwhile True: os.mkdir('d'); os.chdir('d')",
        "import os\nos.mkdir('d', 0)\nwhile True: open('x', 'ab').write(bytes(9999))",
    ],
    ids=["bytes", "files", "folders", "hidden"],
)
def test_a_disk_filler(attack: Run, filler: str) -> None:
    free = psutil.disk_usage(tempfile.gettempdir()).free
    result = attack(filler, disk=4 << 20, cpu_seconds=10)
    assert result.status == "killed" or "No space left" in result.stderr
    assert result.seconds < 8
    assert psutil.disk_usage(tempfile.gettempdir()).free > free - (1 << 30)


def test_a_flood_of_output_on_both_streams(attack: Run) -> None:
    code = "import os\nwhile True: os.write(1, b'a' * 65536); os.write(2, b'b' * 65536)"
    # On a busy machine what reads the pipes keeps it waiting for much longer than it works.
    result = attack(code, cpu_seconds=1, seconds=90, output=100)
    assert (result.status, result.truncated) == ("killed", True)
    assert (result.stdout, result.stderr) == ("a" * 100, "b" * 100)


def test_the_network(attack: Run) -> None:
    families = ("AF_INET", "AF_INET6", "AF_UNIX", "AF_NETLINK", "AF_PACKET")
    tries = [f"import socket; socket.socket(socket.{each}, socket.SOCK_RAW)" for each in families]
    assert _outcomes(attack, tries)[0] == dict.fromkeys(tries, "PermissionError")


def test_the_hosts_files_and_environment(
    attack: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "token-of-the-host")
    secret = tmp_path / "secret"
    secret.write_text("token-of-the-host")
    secret.chmod(0o640)
    os.utime(secret, (1, 1))
    before = secret.stat()
    environment = "import os; print(os.environ, os.environb)"
    tries = [
        environment,
        f"print(open({str(secret)!r}).read())",
        f"print(open('/proc/{os.getpid()}/environ').read())",
        f"print(open('/proc/{os.getpid()}/root{secret}').read())",
        f"import mmap, os; print(mmap.mmap(os.open({str(secret)!r}, os.O_RDONLY), 0)[:])",
        f"import os; os.chmod({str(secret)!r}, 0o777)",
        f"import os; os.chown({str(secret)!r}, 12345, 12345)",
        f"import os; os.utime({str(secret)!r}, (9, 9))",
        f"import os; os.truncate({str(secret)!r}, 0)",
        f"import os; os.setxattr({str(secret)!r}, 'user.x', b'y')",
        f"import os; os.rename({str(secret)!r}, 'mine')",
        f"import os; os.link({str(secret)!r}, 'mine'); print(open('mine').read())",
    ]
    found, said = _outcomes(attack, tries)
    assert "token-of-the-host" not in said
    assert [code for code in tries if found[code] == WORKED] == [environment]
    after = secret.stat()
    assert secret.read_text() == "token-of-the-host"
    assert (after.st_mode, after.st_uid, after.st_mtime) == (before.st_mode, before.st_uid, 1)


def test_signalling_and_weakening_the_parent(attack: Run) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    nice, cores = os.getpriority(os.PRIO_PROCESS, 0), os.sched_getaffinity(0)
    me = os.getpid()
    tries = [
        f"import os; os.kill({me}, 9)",
        "import os; os.kill(os.getppid(), 9)",
        "import os; os.killpg(0, 9)",
        "import os; os.kill(-1, 9)",
        "import signal, threading; signal.pthread_kill(threading.get_ident(), 9)",
        f"import signal, os; signal.pidfd_send_signal(os.pidfd_open({me}), 9)",
        f"import fcntl; fcntl.fcntl(1, fcntl.F_SETOWN, {me})",
        "import fcntl; fcntl.fcntl(1, fcntl.F_SETSIG, 9)",
        f"import resource; resource.prlimit({me}, resource.RLIMIT_NOFILE, (3, 3))",
        f"import os; os.setpriority(os.PRIO_PROCESS, {me}, 19)",
        f"import os; os.sched_setaffinity({me}, [0])",
    ]
    assert _outcomes(attack, tries) == (dict.fromkeys(tries, "PermissionError"), "")
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == limits
    assert (os.getpriority(os.PRIO_PROCESS, 0), os.sched_getaffinity(0)) == (nice, cores)


def test_its_own_limits_cannot_be_raised(attack: Run) -> None:
    code = "import resource as r; r.setrlimit(r.RLIMIT_AS, (r.RLIM_INFINITY, r.RLIM_INFINITY))"
    assert attack(code).status == "error"


def test_proc(attack: Run, request: pytest.FixtureRequest) -> None:
    if request.node.callspec.params["attack"] == "container":
        # It has a /proc of its own, with the agent and the program alone.
        code = "import os; print(sum(name.isdigit() for name in os.listdir('/proc')))"
        assert int(attack(code).stdout) <= 3
        hidden = ["/proc/1/environ", "/proc/1/mem", "/proc/1/maps", "/proc/kcore"]
    else:
        hidden = ["/proc/1/cmdline", "/proc/self/mem", "/proc/self/maps", "/sys/kernel/profiling"]
        assert attack("import os; print(os.listdir('/proc'))").stdout in ("", "[]\n")
    tries = [f"print(open({path!r}, 'rb').read(1)[0])" for path in hidden]
    tries.append("open('/proc/sys/kernel/core_pattern', 'w').write('|/bin/sh')")
    found, said = _outcomes(attack, tries)
    assert (WORKED in found.values(), said) == (False, ""), found


def test_ptrace(attack: Run) -> None:
    code = f"""
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for request in (0, 16, 0x4206):  # TRACEME, ATTACH, SEIZE
    print(libc.ptrace(request, {os.getpid()}, None, None), ctypes.get_errno())
vector = (ctypes.c_void_p * 2)(id(code := b'x'), 1)
print(libc.process_vm_readv({os.getpid()}, vector, 1, vector, 1, 0), ctypes.get_errno())
"""
    assert attack(code).stdout == "-1 1\n" * 4


def test_links_and_path_tricks(attack: Run, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("token-of-the-host")
    up = "/".join([".."] * 20)
    tries = [
        f"import os; os.symlink({str(secret)!r}, 'l'); print(open('l').read())",
        f"import os; os.symlink({str(secret)!r}, 'w'); open('w', 'w').write('x')",
        f"import os; os.symlink('/', 'r'); print(open('r{secret}').read())",
        f"print(open({up + str(secret)!r}).read())",
        f"import os; d = os.open('/', 0); print(os.open({str(secret)[1:]!r}, 0, dir_fd=d))",
        f"import os; os.chroot('.'); print(open({up + str(secret)!r}).read())",
        f"print(open('/proc/self/cwd/{up}{secret}').read())",
        "print(open('/dev/../etc/shadow').read())",
        "import os; os.mknod('d', 0o60666, os.makedev(8, 0)); open('d')",
        "print(open('/dev/kmsg').read(1))",
    ]
    found, said = _outcomes(attack, tries)
    assert WORKED not in found.values(), found
    assert "token-of-the-host" not in said
    assert "FileExistsError" not in found.values(), "each makes what it needs"
    assert secret.read_text() == "token-of-the-host"


class _Gadget:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch {}",)


def test_pickles_run_confined_and_are_never_loaded_here(attack: Run, tmp_path: Path) -> None:
    target = tmp_path / "pwned"
    gadget = pickle.dumps(_Gadget(), 0).replace(b"touch {}", f"touch {target}".encode())
    inside = attack(f"import pickle; print(pickle.loads({gadget!r}))")
    assert inside.stdout in ("-1\n", "32512\n", "")
    outside = attack(f"import sys; sys.stdout.buffer.write({gadget!r})")
    assert isinstance(outside.stdout, str)
    assert not target.exists()


@pytest.mark.parametrize(
    "code",
    [
        "import os, time; os.close(1); os.close(2); time.sleep(60)",
        "import signal as s, time\nfor n in (1, 2, 15): s.signal(n, s.SIG_IGN)\ntime.sleep(60)",
        "import threading, time; threading.Thread(target=time.sleep, args=(60,)).start()",
        "import os, time\ntry: os.fork()\nexcept OSError: os.close(1)\ntime.sleep(60)",
    ],
    ids=["silent", "deaf", "thread", "daemon"],
)
def test_outliving_its_time(attack: Run, code: str) -> None:
    result = attack(code, seconds=0.7)
    assert result.status in ("timeout", "killed")
    assert result.seconds < 5


def test_it_dies_with_its_owner_also_when_it_refuses(attack: Run) -> None:
    """Its last way to stay is to take back the signal that it gets when its parent dies."""
    code = (
        "import ctypes; libc = ctypes.CDLL(None, use_errno=True)\n"
        "print(libc.prctl(1, 0, 0, 0, 0), ctypes.get_errno())"
    )
    assert attack(code).stdout == "-1 1\n"


def _user_seconds(process: psutil.Process) -> float:
    """CPU seconds of a process, 0 of one that ended: the sandbox's own probes are short."""
    try:
        return process.cpu_times().user
    except psutil.NoSuchProcess:
        return 0.0


def test_no_sandbox_outlives_a_killed_owner() -> None:
    owner = "from infra.sandbox.python import *; run_python('while True: pass', Limits(60, 60))"
    process = subprocess.Popen([sys.executable, "-c", owner])
    try:
        deadline = time.monotonic() + 30
        family = [psutil.Process(process.pid)]
        while max(map(_user_seconds, family[1:]), default=0) < 0.3:
            assert time.monotonic() < deadline
            time.sleep(0.05)
            family[1:] = family[0].children(recursive=True)
    finally:
        process.kill()
        process.wait()
    _, alive = psutil.wait_procs(family[1:], timeout=5)
    assert not alive


def test_overwriting_its_own_verifier(attack: Run) -> None:
    """Answer and verifier are two samples: what the first does to its Python ends with it."""
    files = [Path(os.__file__), INFRA / "python.py", INFRA / "confine" / "launcher.py"]
    before = [file.read_bytes() for file in files]
    tries = [
        code
        for file in map(str, files)
        for code in (
            f"open({file!r}, 'w').write('print(1)')",
            f"import os; os.remove({file!r})",
            f"import os; open('x', 'w').close(); os.rename('x', {file!r})",
        )
    ]
    found, _ = _outcomes(attack, tries)
    assert WORKED not in found.values(), found
    assert [file.read_bytes() for file in files] == before
    cheat = (
        "import builtins, json, os, sys\n"
        "builtins.print = lambda *a: None\njson.loads = lambda s: [42]\n"
        "open('json.py', 'w').write('loads = lambda s: [1]')\n"
        "open('sitecustomize.py', 'w').write('raise SystemExit')\n"
        "sys.path.insert(0, os.getcwd()); os._exit(0)"
    )
    assert attack(cheat).status == "ok"
    verifier = "import json; print(json.loads('[7]') == [42])"
    assert attack(verifier).stdout == "False\n"


def test_forging_how_it_ended(attack: Run) -> None:
    """Whatever it writes is output; only the kernel says how it ended."""
    forged = f"import os; os.write(1, {READY!r}); os.write(1, b'ok'); os._exit(3)"
    result = attack(forged)
    assert (result.status, result.exit_code) == ("error", 3)
    assert result.stdout == READY.decode() + "ok"
