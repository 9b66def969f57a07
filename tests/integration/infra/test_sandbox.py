"""The sandbox against programs that try to get out of it, under every confinement that holds."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from engines.types import AssistantTurn, Message, Status, ToolCall, Transcript
from infra.errors import InputError, TributaryError
from infra.sandbox import python as sandbox
from infra.sandbox.python import MECHANISMS, Level, level, run_python
from tests.parts.sandboxes import FOR_PROGRAMS, confined

pytestmark = pytest.mark.integration


@pytest.fixture(params=FOR_PROGRAMS, ids="+".join)
def run(request):
    """`run(code, **limits)` under one confinement."""
    return confined(request.param)


def test_this_machine_confines():
    assert level().holds, level()


def test_a_program_runs_with_the_standard_library_and_its_own_folder(run):
    result = run(
        "import decimal, json, math, threading\n"
        "open('x', 'w').write('hi')\n"
        "t = threading.Thread(target=print, args=(open('x').read(),)); t.start(); t.join()\n"
        "print(json.dumps(math.factorial(5)))"
    )
    assert (result.status, result.stdout, result.exit_code) == ("ok", "hi\n120\n", 0)


def test_an_error_shows_the_programs_own_traceback(run):
    result = run("def f():\n  1 / 0\nf()")
    assert (result.status, result.exit_code) == ("error", 1)
    assert "ZeroDivisionError" in result.stderr
    assert "launcher" not in result.stderr
    assert run("print(1+").status == "error"
    assert run("raise SystemExit(3)").exit_code == 3


def test_a_program_that_others_kill_is_run_once_more(run):
    """As the kernel kills when memory is short."""
    for expected in ("ok", "killed"):
        kills = 1 if expected == "ok" else 2
        before = {process.pid for process in psutil.Process().children(recursive=True)}
        killer = threading.Thread(target=_kill_programs, args=(kills, before))
        killer.start()
        result = run("import time; time.sleep(1.5); print(6 * 7)", cpu_seconds=1)
        killer.join()
        assert result.status == expected
        assert result.stdout == ("42\n" if expected == "ok" else "")


def test_a_program_that_its_cpu_limit_kills_is_run_once(run, monkeypatch):
    runs = []
    stock = sandbox._run
    monkeypatch.setattr(sandbox, "_run", lambda *given: runs.append(given) or stock(*given))
    assert run("while True: pass", cpu_seconds=1).status == "killed"
    assert len(runs) == 1


def _kill_programs(count: int, known: set[int]) -> None:
    """The newest process of a sandbox, `count` times; `known` are of other tests."""
    deadline = time.monotonic() + 20
    while count and time.monotonic() < deadline:
        time.sleep(0.2)
        children = psutil.Process().children(recursive=True)
        found = [p for p in children if p.pid not in known and not p.children()]
        if found:
            known |= {p.pid for p in children}
            found[-1].kill()
            count -= 1


@pytest.mark.parametrize(
    "code",
    [
        "import socket; socket.socket()",
        "import socket; socket.create_connection(('127.0.0.1', 80))",
        "import socket; socket.socket(socket.AF_UNIX)",
        "import urllib.request; urllib.request.urlopen('http://127.0.0.1')",
        "import os; os.fork()",
        "import subprocess; subprocess.run(['/bin/true'])",
        "import os; os.execv('/bin/true', ['true'])",
        "import os; os.kill(os.getppid(), 9)",
        "import os; os.setsid()",
        "import os; os.listdir('/proc')",
    ],
)
def test_network_processes_and_signals_are_refused(run, code):
    result = run(code)
    assert result.status == "error"
    assert any(word in result.stderr for word in ("PermissionError", "FileNotFound", "URLError"))


def test_no_namespace_can_be_made_and_no_capability_is_left(run):
    code = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
assert libc.capget(header, data) == 0
print(libc.unshare(0x10000000), libc.mount(b'none', b'/tmp', b'tmpfs', 0, b''), sum(data))
"""
    assert run(code).stdout == "-1 -1 0\n"


def test_host_files_can_be_neither_read_nor_written(run, tmp_path: Path):
    secret = tmp_path / "secret"
    secret.write_text("token")
    target = tmp_path / "written"
    for code in (
        f"print(open({str(secret)!r}).read())",
        f"open({str(target)!r}, 'w').write('x')",
        f"import os; os.mkdir({str(target)!r})",
        f"import os; os.remove({str(secret)!r})",
        "print(open('/etc/passwd').read())",
        "import os; os.listdir('/home')",
        "import os; open(os.__file__, 'a').write('x')",
        f"import os; os.symlink({str(secret)!r}, 'link'); print(open('link').read())",
    ):
        result = run(code)
        assert result.status == "error", code
        assert result.stdout == ""
    assert secret.read_text() == "token"
    assert not target.exists()


def test_environment_and_descriptors_are_not_inherited(run, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "abc")
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    try:
        code = "import os, sys; print(dict(os.environ), sys.stdin.read() == '')\n"
        assert "SECRET_TOKEN" not in run(code).stdout
        assert "True" in run(code).stdout
        assert "OSError" in run(f"import os; os.write({writer}, b'x')").stderr
    finally:
        os.close(reader)
        os.close(writer)


def test_a_fork_bomb_starts_nothing_and_threads_are_bounded_by_memory(run):
    bomb = "import os\nfor _ in range(10**4):\n  try: os.fork()\n  except OSError: n = 1\nprint(n)"
    assert run(bomb).stdout == "1\n"
    threads = (
        "import threading, time\n"
        "for _ in range(10**4): threading.Thread(target=time.sleep, args=(9,), daemon=True).start()"
    )
    assert "can't start new thread" in run(threads).stderr


def test_memory_is_bounded(run):
    assert "MemoryError" in run("x = bytearray(10**9)").stderr


def test_file_size_is_bounded(run):
    result = run("open('x', 'wb').write(bytes(10**7))", file_size=10**6)
    assert result.status in ("error", "killed")


def test_wall_clock_time_is_bounded(run):
    result = run("print('begun', flush=True)\nimport time; time.sleep(60)", seconds=1.5)
    assert (result.status, result.stdout, result.exit_code) == ("timeout", "begun\n", None)
    assert result.seconds < 10


def test_processor_time_is_bounded(run):
    result = run("while True: pass", cpu_seconds=1)
    assert result.status == "killed"


def test_a_flood_of_output_is_cut_and_does_not_block(run):
    result = run("import sys; print('a' * 10**7); print('b' * 10**7, file=sys.stderr)", output=100)
    assert (result.status, result.truncated) == ("ok", True)
    assert (result.stdout, result.stderr) == ("a" * 100, "b" * 100)


def test_programs_run_side_by_side(run):
    results: dict[int, str] = {}
    threads = [
        threading.Thread(target=lambda n=n: results.update({n: run(f"print({n})").stdout}))
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {n: f"{n}\n" for n in range(4)}


@pytest.mark.parametrize("mechanisms", [(), ("seccomp",), ("namespaces", "landlock")])
def test_code_is_refused_where_the_confinement_does_not_hold(mechanisms):
    with pytest.raises(InputError, match="sandbox: unsafe"):
        run_python("print(1)", confinement=Level(mechanisms))


def test_unsafe_runs_it_all_the_same_with_limits():
    result = run_python("print(1)", demand="unsafe", confinement=Level(()))
    assert result.stdout == "1\n"
    assert (
        run_python("x = bytearray(10**9)", demand="unsafe", confinement=Level(())).status == "error"
    )


def test_where_the_kernel_refuses_namespaces_the_other_two_hold():
    """A process under a filter of its own, as in a strict container."""
    code = (
        "from infra.sandbox.confine import libc, landlock\n"
        "from infra.sandbox.python import MECHANISMS, Level, _works\n"
        "libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)\n"
        "landlock.restrict(['/'], ['/'])\n"
        "print([m for m in MECHANISMS if _works(m)])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    # a Landlock domain forbids every mount, so namespaces cannot be set up inside one
    assert done.stdout.strip() == "['landlock', 'seccomp']", done.stderr


def test_a_broken_launcher_is_an_error_that_says_so(monkeypatch, tmp_path: Path):
    launcher = tmp_path / "launcher.py"
    launcher.write_text("raise OSError('no such mechanism')")
    monkeypatch.setattr("infra.sandbox.python.LAUNCHER", launcher)
    with pytest.raises(TributaryError, match="no such mechanism"):
        run_python("print(1)", confinement=Level(MECHANISMS))


async def test_the_agents_python_tool_computes_what_its_problems_ask():
    from curricula.built_in_curricula import build
    from rewards.built_in_rewards import build as build_reward

    curriculum = build("agent", {"levels": ["hard"]})
    reward = build_reward("agent-answer")
    for shown in curriculum.demonstrations(4, seed=0):
        transcript = Transcript(shown.problem, shown.turns, Status.COMPLETED, 9)
        assert (await reward(transcript)).score == 1.0
        nothing = Transcript(shown.problem, (Message("assistant", ""),), Status.COMPLETED, 1)
        assert (await reward(nothing)).score == 0.0
    environment = curriculum.environment()
    assert environment is not None
    episode = await environment.start(shown.problem)
    calls = tuple(ToolCall("python", {"code": code}) for code in ("print(6*7)", "1/0"))
    step = await episode.step(AssistantTurn("", "", None, calls))
    assert [m.content for m in step.messages] == [
        "42",
        "error: ZeroDivisionError: division by zero",
    ]
