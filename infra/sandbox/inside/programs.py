"""A forked child that becomes the program of one command. Nothing here returns."""

from __future__ import annotations

import atexit
import os
import resource
import runpy
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from infra.sandbox.confine import libc, seccomp

PYTHON = "python"
CONFINED = b"confined"
_REPORT = 3
"""the descriptor where a child says how far it came"""
_NOT_FOUND, _FAILED = 127, 1
_ALL_USERS = (1 << 32) - 1
_SCRIPT_NEEDED = "python needs -c CODE, -m MODULE or a file"


def become(
    command: Sequence[str],
    streams: tuple[int, int, int, int],
    folder: str,
    environment: Mapping[str, str],
    limits: Mapping[str, Any],
    agent: int,
) -> NoReturn:
    """Confines this process for one command and runs it: `python` in this very interpreter,
    anything else where the limits allow processes.

    `streams`: standard input, output, errors, and where it says `CONFINED`, or why it is not.
    """
    code = _FAILED
    try:
        os.setsid()
        libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != agent:
            os._exit(_FAILED)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        os.closerange(len(streams), 1 << 16)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # its agent ignores it
        _confine(folder, environment, limits)
        _open_streams()
        code = _python(command[1:]) if command[0] == PYTHON else _other(command)
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
    finally:
        os._exit(code)


def _confine(folder: str, environment: Mapping[str, str], limits: Mapping[str, Any]) -> None:
    try:
        os.chdir(folder)
        os.environ.clear()
        os.environ.update({"HOME": folder, "TMPDIR": folder, **environment})
        _limit(limits)
        seccomp.restrict(with_processes=limits["processes"] > 1)
    except BaseException as error:
        os.write(_REPORT, f"{type(error).__name__}: {error}".encode())
        raise
    os.write(_REPORT, CONFINED)
    os.close(_REPORT)


def _limit(limits: Mapping[str, Any]) -> None:
    for kind, name in (
        (resource.RLIMIT_AS, "memory"),
        (resource.RLIMIT_CPU, "cpu_seconds"),
        (resource.RLIMIT_FSIZE, "file_size"),
        (resource.RLIMIT_NOFILE, "open_files"),
    ):
        resource.setrlimit(kind, (limits[name], limits[name]))
    resource.setrlimit(resource.RLIMIT_CORE, (1, 1))  # 0 does not keep a handler away
    # Counted by user. It does not bind where root started the sandbox: see `commands.py`.
    if limits["processes"] > 1 and _has_users_of_its_own():
        resource.setrlimit(resource.RLIMIT_NPROC, (limits["processes"] + 8,) * 2)


def _has_users_of_its_own() -> bool:
    """Return whether this is a user namespace: elsewhere others' processes would count as well."""
    with open("/proc/self/uid_map") as mapped:
        return int(mapped.readline().split()[2]) < _ALL_USERS


def _open_streams() -> None:
    def opened(descriptor: int, mode: str, errors: str) -> Any:
        return open(descriptor, mode, encoding="utf-8", errors=errors, closefd=False)

    sys.stdin = sys.__stdin__ = opened(0, "r", "surrogateescape")
    sys.stdout = sys.__stdout__ = opened(1, "w", "surrogateescape")
    sys.stderr = sys.__stderr__ = opened(2, "w", "backslashreplace")
    sys.stderr.reconfigure(line_buffering=True)


def _other(command: Sequence[str]) -> int:
    try:
        os.execvp(command[0], list(command))
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
        return _NOT_FOUND


def _python(arguments: Sequence[str]) -> int:
    """The exit code of a program, with its threads, exit handlers and buffers done."""
    import threading

    code = _FAILED
    try:
        _run(arguments)
        code = 0
    except SystemExit as error:
        code = _exit_code(error.code)
    except BaseException as error:
        _show(error)
    try:
        threading._shutdown()  # pyrefly: ignore[missing-attribute]  # noqa: SLF001
        atexit._run_exitfuncs()  # noqa: SLF001
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException as error:
        _show(error)
        return 120  # as Python does
    return code


def _run(arguments: Sequence[str]) -> None:
    option = arguments[0] if arguments else ""
    if option == "-c" and len(arguments) > 1:
        sys.argv = ["-c", *arguments[2:]]
        sys.path.insert(0, "")
        module = _new_main()
        exec(compile(arguments[1], "<code>", "exec"), module)
    elif option == "-m" and len(arguments) > 1:
        sys.argv = list(arguments[1:])
        sys.path.insert(0, os.getcwd())
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    elif option and not option.startswith("-"):
        sys.argv = list(arguments)
        sys.path.insert(0, os.path.dirname(os.path.abspath(option)))
        module = _new_main()
        module["__file__"] = option
        with open(option, "rb") as file:
            source = file.read()
        exec(compile(source, option, "exec"), module)
    else:
        raise SystemExit(_SCRIPT_NEEDED)


def _new_main() -> dict[str, Any]:
    main = type(sys)("__main__")
    sys.modules["__main__"] = main
    return main.__dict__


def _exit_code(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)
    return _FAILED


def _show(error: BaseException) -> None:
    """The traceback, from the program's own first frame on."""
    trace = error.__traceback__
    while trace is not None and _is_ours(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    shown = error.with_traceback(trace)
    sys.__excepthook__(type(shown), shown, shown.__traceback__)


def _is_ours(file: str) -> bool:
    return file in (__file__, runpy.__file__) or file.startswith("<frozen")
