"""The sandboxed process: reads an order from its input, confines itself, runs the code.

    order -> namespaces -> fork -> new root -> limits -> Landlock -> seccomp -> READY -> code

Started by `infra/sandbox/python.py` as `python -I -S launcher.py`. The order is one JSON object:
{"code", "mechanisms", "readable", "work", "memory", "disk", "cpu_seconds", "file_size",
"open_files"}.
Whatever comes before READY on the output is ours; all after it is the code's.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys

READY = b"\x00ready\n"
_ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3))


def main() -> None:
    order = json.load(sys.stdin)
    confine(order)
    sys.stdin = open(os.devnull)  # noqa: SIM115 (lives as long as the process)
    os.write(1, READY)
    run(order["code"])


def confine(order: dict[str, object]) -> None:
    """Confine by all that the order names, or OSError."""
    sys.path.insert(0, _ROOT)
    from infra.sandbox.confine import landlock, libc, namespaces, seccomp

    sys.path.remove(_ROOT)
    mechanisms, readable = order["mechanisms"], order["readable"]
    work, size = order["work"], order["disk"]
    assert isinstance(mechanisms, list)
    assert isinstance(readable, list)
    assert isinstance(work, str)
    assert isinstance(size, int)
    libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)
    os.chdir(work)
    if "namespaces" in mechanisms:
        namespaces.leave()
        stay_as_parent_of_the_first_process()
        libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)
        namespaces.replace_root(work, readable, size)
        namespaces.become_nobody()
        libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)  # another user forgets it
        work = namespaces.WORK
    limit(order)
    libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
    libc.drop_capabilities()
    if "landlock" in mechanisms:
        landlock.restrict(readable, [work])
    if "seccomp" in mechanisms:
        seccomp.restrict()


def stay_as_parent_of_the_first_process() -> None:
    """Forks: the child continues, this process only reports how the child ended."""
    child = os.fork()
    if child == 0:
        return
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


def limit(order: dict[str, object]) -> None:
    def bound(kind: int, name: str) -> None:
        value = order[name]
        assert isinstance(value, int)
        resource.setrlimit(kind, (value, value))

    bound(resource.RLIMIT_AS, "memory")
    bound(resource.RLIMIT_CPU, "cpu_seconds")
    bound(resource.RLIMIT_FSIZE, "file_size")
    bound(resource.RLIMIT_NOFILE, "open_files")
    resource.setrlimit(resource.RLIMIT_CORE, (1, 1))  # 0 does not keep a handler away


def run(code: str) -> None:
    """Runs the code as a main module; its traceback starts at its own first frame."""
    module: dict[str, object] = {"__name__": "__main__"}
    try:
        exec(compile(code, "<code>", "exec"), module)
    except SystemExit:
        raise
    except BaseException as error:
        trace = error.__traceback__
        shown = error.with_traceback(trace and trace.tb_next)
        sys.__excepthook__(type(shown), shown, shown.__traceback__)
        sys.exit(1)


if __name__ == "__main__":
    main()
