"""The kind `container`: an image that podman or docker runs, named by its digest.

The image needs Python 3.11 or newer as `python3`; the agent and its code are shown to it read-only.
A container has no network.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import secrets
import shutil
import socket
import subprocess

from infra.errors import InputError
from infra.sandbox.agent_sandbox import AgentSandbox
from infra.sandbox.confine.namespaces import WORK
from infra.sandbox.connection import Connection
from infra.sandbox.kinds.bubblewrap import CODE_INSIDE, SANDBOX_CODE
from infra.sandbox.sandbox import Limits, SandboxLost
from infra.secret_references import ask_program, environment_without_secrets

PROGRAMS = ("podman", "docker")
"""the first that runs is taken: podman needs no daemon and no root"""
_BY_DIGEST = re.compile(r"(.+@)?sha256:[0-9a-f]{64}")
_SPARE_MEMORY = 64 << 20
"""for the agent"""
_SPARE_PROCESSES = 8
_OPEN_FILES = 1024
_USERS_PROCESSES = 4096
"""of the user in all containers together; `--pids-limit` bounds each"""
_REASON_SECONDS = 60.0
_MOST_REASON = 1000
"""characters"""


@functools.cache
def runner() -> tuple[str, str]:
    """The program that runs containers here, or why none does: one of both is empty."""
    reasons: list[str] = []
    for program in PROGRAMS:
        if shutil.which(program) is None:
            reasons.append(f"`{program}` is not installed")
            continue
        try:
            done = ask_program([program, "info"], 60)
        except (OSError, subprocess.TimeoutExpired) as error:
            reasons.append(f"`{program}` does not run: {error}")
            continue
        if done.returncode == 0:
            return program, ""
        said = done.stderr.strip().splitlines() or ["no reason given"]
        reasons.append(f"`{program}` does not run: {said[-1]}")
    return "", "; ".join(reasons)


def refusal() -> str:
    """Why this machine cannot run it, or nothing."""
    return runner()[1]


def start(limits: Limits, image: str) -> AgentSandbox:
    """Return a sandbox of an image, e.g. `docker.io/library/python@sha256:<64 digits>`, that is
    ready.

    Raises InputError for an image that is not named by its digest, or where nothing runs it, and
    SandboxLost with what podman or docker said where no container starts.
    """
    if not _BY_DIGEST.fullmatch(image):
        raise InputError(
            f"`image`: {image!r} may be another image tomorrow; name it by its digest, as in "
            "`python@sha256:<64 digits>` (`podman image inspect` shows it)."
        )
    program, why = runner()
    if why:
        raise InputError(f"no sandbox of the kind `container`: {why}.")
    name = f"tributary-sandbox-{secrets.token_hex(8)}"
    run = command(program, name, image, limits)
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            run,
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=subprocess.DEVNULL,
            env=environment_without_secrets(os.environ),
            start_new_session=True,
        )

    def end() -> None:
        _remove(program, name)
        process.kill()
        process.wait()

    connection = Connection(ours, "a container")
    sandbox = AgentSandbox(connection, limits, end=end)
    try:
        sandbox.wait_ready()
    except SandboxLost as error:
        sandbox.stop()
        why = _what_it_says(run)
        _remove(program, name)
        raise SandboxLost(f"{error}: {why}") from error
    except BaseException:
        sandbox.stop()
        raise
    return sandbox


def _remove(program: str, name: str) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired, OSError):
        ask_program([program, "rm", "-f", name], 60)


def _what_it_says(run: list[str]) -> str:
    """Why the same container does not start; its agent ends at once, as its input is empty."""
    try:
        done = subprocess.run(
            run, env=environment_without_secrets(os.environ), stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace",
            timeout=_REASON_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"`{run[0]} run` starts nothing within {_REASON_SECONDS:.0f} s"
    if done.returncode == 0:
        return f"`{run[0]} run` starts it now; the machine may have been too busy"
    reason = " ".join(done.stderr.split())[-_MOST_REASON:]
    return f"`{run[0]} run` ends with {done.returncode} and says: {reason or 'nothing'}"


def command(program: str, name: str, image: str, limits: Limits) -> list[str]:
    """Return what starts a container whose agent speaks on standard input and output."""
    processes = limits.processes + _SPARE_PROCESSES
    programs = min(limits.resident, limits.memory * limits.processes)
    memory = programs + limits.disk + _SPARE_MEMORY
    return [
        *(program, "run", "--rm", "--interactive", "--name", name, "--pull", "missing"),
        *("--network", "none", "--read-only", "--cap-drop", "ALL", "--hostname", "sandbox"),
        *("--security-opt", "no-new-privileges", "--user", "65534:65534"),
        *("--pids-limit", str(processes), "--memory", str(memory), "--memory-swap", str(memory)),
        # Podman raises both to its own idea of most, which a container around it may not allow.
        *("--ulimit", f"nofile={_OPEN_FILES}", "--ulimit", f"nproc={_USERS_PROCESSES}"),
        *("--tmpfs", f"{WORK}:rw,nosuid,nodev,size={limits.disk},mode=1777", "--workdir", WORK),
        *("--volume", f"{SANDBOX_CODE}:{CODE_INSIDE}:ro", "--entrypoint", "python3", image),
        *("-s", "-S", "-P", f"{CODE_INSIDE}/inside/start_agent.py", WORK, "watch-disk"),
    ]
