"""The contract of sandboxes, against every kind that this machine can run."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import psutil
import pytest

from infra.errors import InputError
from infra.sandbox.kinds import bubblewrap, container, process, remote
from infra.sandbox.sandbox import Limits, Sandbox, SandboxLost, SandboxRefused, Snapshot
from tests.parts.sandbox_kinds import FOR_CONTRACT, Start, starting
from tests.parts.sandbox_server import sandbox_server

pytestmark = pytest.mark.integration
LIMITS = Limits(seconds=60.0, disk=8 << 20, output=6_000_000)


@pytest.fixture(params=FOR_CONTRACT, scope="module")
def start(request: pytest.FixtureRequest) -> Iterator[Start]:
    with starting(request.param) as started:
        yield started


@pytest.fixture
def sandbox(start: Start) -> Iterator[Sandbox]:
    started = start(LIMITS)
    yield started
    started.stop()


def python(sandbox: Sandbox, code: str, *arguments: str, **given):
    return sandbox.exec(["python", "-c", code, *arguments], **given)


def test_commands_files_and_streams(sandbox: Sandbox) -> None:
    sandbox.write("pkg/one.py", b"import sys\nprint(sys.stdin.read(), sys.argv[1:], __name__)")
    told = sandbox.exec(["python", "pkg/one.py", "a", "b"], stdin=b"text")
    assert (told.status, told.stdout, told.exit_code) == ("ok", "text ['a', 'b'] __main__\n", 0)
    assert sandbox.exec(["python", "-m", "pkg.one"], stdin=b"").stdout == " [] __main__\n"
    code = "import os, sys; open('x', 'wb').write(b'\\xff'); sys.exit(os.environ['A'] + 'no')"
    told = python(sandbox, code, environment={"A": "so "})
    assert (told.status, told.exit_code, told.stderr) == ("error", 1, "so no\n")
    assert sandbox.read("x") == b"\xff"
    assert python(sandbox, "import pkg.one, os; print(os.listdir())").stdout.endswith("\n")
    told = python(sandbox, "def f():\n  1 / 0\nf()")
    assert told.stderr.startswith('Traceback (most recent call last):\n  File "<code>", line 3')


def test_a_snapshot_is_all_the_files_and_moves_between_sandboxes(
    sandbox: Sandbox, start: Start
) -> None:
    files = {"a.txt": b"1", "deep/er/b.bin": bytes(range(256)), "empty": b""}
    sandbox.restore(Snapshot.of(files))
    before = sandbox.snapshot()
    spoil = (
        "import os, shutil\nshutil.rmtree('deep'); open('a.txt', 'a').write('2')\n"
        "os.makedirs('x/' * 40); os.symlink('/etc', 'link'); os.mkfifo('pipe')"
    )
    assert python(sandbox, spoil).status in ("ok", "error")  # a filter may refuse the pipe
    other = start(LIMITS)
    try:
        for restored in (sandbox, other):
            restored.restore(before)
            assert {path: restored.read(path) for path in files} == files
            left = "import os; print(sorted(os.listdir()))"
            assert python(restored, left).stdout == "['a.txt', 'deep', 'empty']\n"
    finally:
        other.stop()


def test_five_megabytes_and_bytes_that_are_no_text(sandbox: Sandbox) -> None:
    told = python(sandbox, "import os; os.write(1, b'\\xff\\xfe!'); os.write(2, b'\\x80')")
    assert (told.stdout, told.stderr) == ("\ufffd\ufffd!", "\ufffd")
    told = python(sandbox, "print('a' * 5_000_000)")
    assert (len(told.stdout), told.truncated) == (5_000_001, False)
    told = python(sandbox, "print('a' * 5_000_000)", limits=Limits(output=100))
    assert (told.stdout, told.truncated) == ("a" * 100, True)


def test_limits_of_time_memory_processor_and_disk(sandbox: Sandbox) -> None:
    slow = python(
        sandbox, "print(1, flush=True)\nimport time; time.sleep(60)", limits=Limits(seconds=1)
    )
    assert (slow.status, slow.stdout, slow.exit_code) == ("timeout", "1\n", None)
    assert slow.seconds < 10
    spinning = python(sandbox, "while True: pass", limits=Limits(seconds=60, cpu_seconds=1))
    assert spinning.status == "killed"
    assert "MemoryError" in python(sandbox, "x = bytearray(10**9)").stderr
    filler = "n = 0\nwhile True: open(f'f{n}', 'wb').write(bytes(1 << 19)); n += 1"
    full = python(sandbox, filler)
    assert full.status == "killed" or "No space left" in full.stderr
    sandbox.restore(Snapshot.of({}))
    assert python(sandbox, "print(42)").stdout == "42\n"


def test_what_is_refused_says_why(sandbox: Sandbox) -> None:
    for path in ("../x", "/etc/passwd", "", "a/../../x", "a\0b"):
        with pytest.raises(InputError, match="no path of a file"):
            sandbox.read(path)
    with pytest.raises(SandboxRefused, match="No such file"):
        sandbox.read("absent")
    python(sandbox, "import os; os.symlink('/etc/shadow', 'link'); os.mkdir('folder')")
    with pytest.raises(SandboxRefused):
        sandbox.read("link")
    with pytest.raises(SandboxRefused):
        sandbox.read("folder")
    sandbox.write("big", bytes(4000))
    with pytest.raises(SandboxRefused, match="more than 100 bytes"):
        sandbox.read("big", most=100)
    with pytest.raises(SandboxRefused):
        sandbox.write("bigger", bytes(9 << 20))
    with pytest.raises(InputError, match="another program"):
        sandbox.exec(["sh", "-c", "true"])
    with pytest.raises(InputError, match="empty"):
        sandbox.exec([])


def test_nothing_of_ours_is_inherited(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "abc")
    told = python(sandbox, "import os; print(sorted(os.environ))")
    assert "SECRET" not in told.stdout
    assert "HOME" in told.stdout
    closed = (
        "import os\nfor n in range(3, 99):\n  try: os.fstat(n); print(n)\n  except OSError: pass"
    )
    assert python(sandbox, closed).stdout == ""


def test_stopping_ends_what_runs(start: Start) -> None:
    sandbox = start(LIMITS)
    threading.Timer(0.5, sandbox.stop).start()
    began = time.monotonic()
    with pytest.raises(SandboxLost):
        python(sandbox, "import time; time.sleep(60)", limits=Limits(seconds=15))
    assert time.monotonic() - began < 12
    sandbox.stop()
    assert not sandbox.is_running()
    with pytest.raises(SandboxLost):
        sandbox.write("x", b"")


@pytest.fixture
def programs() -> Iterator[Sandbox]:
    """One that runs any program."""
    if why := bubblewrap.refusal():
        pytest.skip(why)
    sandbox = bubblewrap.start(Limits(20.0, processes=24, memory=2 << 30, open_files=256))
    yield sandbox
    sandbox.stop()


def test_a_command_ends_with_all_that_it_started(programs: Sandbox) -> None:
    told = programs.exec(["sh", "-c", "sleep 77 & setsid sleep 78 & echo $((6 * 7))"])
    assert (told.status, told.stdout) == ("ok", "42\n")
    told = programs.exec(["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"])
    assert "sleep" not in told.stdout
    programs.exec(["sh", "-c", "kill -9 1; kill -9 -1; kill -9 $$"])  # their agent is the first
    assert programs.exec(["no-such-program"]).exit_code == 127


def test_a_command_cannot_end_its_agent_by_a_signal(programs: Sandbox) -> None:
    for signal in ("INT", "TERM", "HUP", "KILL"):
        told = programs.exec(["sh", "-c", f"kill -{signal} 1; sleep 0.2; echo alive"])
        assert told.stdout == "alive\n", signal
    waits = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nprint('went on')"
    assert "KeyboardInterrupt" in python(programs, waits).stderr, "a command's own is as ever"


def test_a_fork_bomb_of_programs_is_ended(programs: Sandbox) -> None:
    bomb = "import os, time\nwhile True:\n  try: os.fork()\n  except OSError: pass"
    told = programs.exec(["python", "-c", bomb])
    assert told.status == "killed"
    assert told.seconds < 10
    assert programs.exec(["echo", "alive"]).stdout == "alive\n"


def test_programs_that_hold_too_much_memory_together_are_ended(programs: Sandbox) -> None:
    holds = "import os, time\nos.fork()\nheld = b'a' * (60 << 20)\ntime.sleep({})"
    most = Limits(20.0, processes=24, memory=2 << 30, resident=100 << 20)
    told = programs.exec(["python", "-c", holds.format(15)], limits=most)
    assert told.status == "killed"
    assert told.seconds < 15
    told = programs.exec(["python", "-c", holds.format(0)], limits=replace(most, resident=1 << 30))
    assert told.status == "ok"


def test_the_user_of_programs_has_a_name(programs: Sandbox) -> None:
    told = programs.exec(["python", "-c", "import pwd, os; print(pwd.getpwuid(os.getuid()))"])
    assert "pw_name='sandbox'" in told.stdout
    assert "pw_dir='/sandbox'" in told.stdout


def test_programs_reach_no_network_and_no_secrets_of_their_agent(programs: Sandbox) -> None:
    code = (
        "import socket\nfor to in (('127.0.0.1', 80), ('1.1.1.1', 53)):\n"
        "  try: socket.create_connection(to, 1)\n  except OSError as e: print(e.errno)"
    )
    assert programs.exec(["python", "-c", code]).stdout == "111\n101\n"
    told = programs.exec(["sh", "-c", "cat /proc/1/environ /proc/1/mem; ls /proc/1/fd/0 -l"])
    assert told.stderr.count("Permission denied") >= 3


def test_only_allowed_addresses_are_reached() -> None:
    if why := bubblewrap.refusal():
        pytest.skip(why)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        sandbox = bubblewrap.start(
            Limits(20.0, processes=4), reach={8080: f"127.0.0.1:{port}", 8081: "127.0.0.1:1"}
        )
        answers = threading.Thread(target=_answer_once, args=(server,))
        answers.start()
        code = (
            "import socket\n"
            "with socket.create_connection(('127.0.0.1', 8080), 9) as s:\n"
            "  s.sendall(b'ask'); s.shutdown(socket.SHUT_WR); print(s.recv(99))\n"
            "with socket.create_connection(('127.0.0.1', 8081), 9) as s: print(s.recv(9))\n"
            f"try: socket.create_connection(('127.0.0.1', {port}), 1)\n"
            "except OSError as e: print(e.errno)"
        )
        try:
            told = sandbox.exec(["python", "-c", code])
        finally:
            sandbox.stop()
        answers.join(10)
        assert (told.stdout, told.stderr) == ("b'answer to ask'\nb''\n111\n", "")


def _answer_once(server: socket.socket) -> None:
    caller, _ = server.accept()
    with caller:
        caller.sendall(b"answer to " + caller.recv(99))


def test_reaching_addresses_needs_processes() -> None:
    if why := bubblewrap.refusal():
        pytest.skip(why)
    with pytest.raises(InputError, match="`reach` needs"):
        bubblewrap.start(Limits(), reach={80: "127.0.0.1:80"})


def test_a_process_sandbox_runs_one_program() -> None:
    with pytest.raises(InputError, match="processes"):
        process.start(Limits(processes=2))


def test_an_image_needs_its_digest_and_something_that_runs_it() -> None:
    with pytest.raises(InputError, match="digest"):
        container.start(Limits(), "python:3.12")
    if container.refusal():
        with pytest.raises(InputError, match="no sandbox of the kind `container`"):
            container.start(Limits(), "python@sha256:" + "0" * 64)
    else:
        with pytest.raises(SandboxLost, match=r"run` ends with 125 and says: .*0{64}"):
            container.start(Limits(), "localhost/none@sha256:" + "0" * 64)
    command = container.command("podman", "name", "sha256:" + "0" * 64, Limits())
    for bound in ("--network none", "--read-only", "--cap-drop ALL", "--pids-limit 9"):
        assert bound in " ".join(command)


def test_a_remote_server_that_refuses_or_is_gone() -> None:
    with sandbox_server() as server:
        with pytest.raises(InputError, match="key"):
            remote.start(LIMITS, url=server.url, key="another")
        sandbox = remote.start(LIMITS, url=server.url, key=server.key)
        server.sandboxes.popitem()[1][0].stop()
        with pytest.raises(SandboxLost, match="404"):
            sandbox.read("x")
        url = server.url
    with pytest.raises(SandboxLost, match="did not answer"):
        remote.start(LIMITS, url=url, key="")
    sandbox.stop()


def test_a_killed_owner_leaves_nothing() -> None:
    owner = (
        "import time\nfrom infra.sandbox.kinds import process, bubblewrap\n"
        "from infra.sandbox.sandbox import Limits\nfrom infra.sandbox.python import Level\n"
        "held = [process.start(Limits()),"
        " process.start(Limits(), confinement=Level(('landlock', 'seccomp')))]\n"
        "if not bubblewrap.refusal(): held.append(bubblewrap.start(Limits()))\n"
        "print(len(held), flush=True); held[-1].exec(['python', '-c', 'while True: pass'])"
    )
    folders = _sandbox_folders()
    with subprocess.Popen([sys.executable, "-c", owner], stdout=subprocess.PIPE) as process_:
        assert process_.stdout is not None
        assert int(process_.stdout.readline()) >= 2
        family = psutil.Process(process_.pid).children(recursive=True)
        assert len(family) >= 4
        process_.kill()
    _, alive = psutil.wait_procs(family, timeout=10)
    assert not alive
    deadline = time.monotonic() + 10
    while _sandbox_folders() - folders:
        assert time.monotonic() < deadline, _sandbox_folders() - folders
        time.sleep(0.05)


def _sandbox_folders() -> set[str]:
    from infra.home import runtime_dir

    base = runtime_dir()
    return {path.name for path in base.parent.glob(f"{base.name}-*-sandbox-*")}
