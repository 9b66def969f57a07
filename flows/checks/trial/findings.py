"""Tries the user's parts in a process of its own, so that one that hangs, exits or prints is named.

Findings without a problem are kept under their content's name: `tributary run` tries nothing twice.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from flows.checks.trial.request import IMPORT_SECONDS, Blind, Findings, TrialRequest
from infra.home import SOURCE_ROOT, home, write_whole
from infra.processes.leftovers import temporary_folder
from infra.secret_references import environment_without_secrets, secrets_of
from infra.user_files import HOOK_COPY, read_hooks

_GRACE_SECONDS = 5.0
"""a part that yields is ended from within; one that blocks, from here, this much later"""
_MOST_SECONDS = 300.0
"""of a whole trial"""
_TAIL = 200
"""characters of what a process that ended had printed"""
_TRIED = ("curricula", "rewards", "engines", "flows/checks/trial", "tasks", "infra/hooks.py")
"""our own files that a trial runs"""


def findings_of(request: TrialRequest, *, again: bool = False) -> Findings:
    """Return what a trial of the parts finds; `again` tries them even if they were found good
    before.
    """
    if not request.runs_user_code:
        return _in_thread(request.model_dump_json())
    kept = home() / "trials" / f"{_key(request)}.json"
    if not again and kept.is_file():
        return Findings.model_validate_json(kept.read_bytes())
    found = try_apart(request)
    if not found.problems:
        write_whole(kept, found.model_dump_json())
    return found


@lru_cache(maxsize=64)
def _in_thread(request: str) -> Findings:
    """Try our own parts in this process; in a thread, as an event loop may already run here."""
    from flows.checks.trial.tried_parts import try_parts

    with ThreadPoolExecutor(1) as threads:
        parsed = TrialRequest.model_validate_json(request)
        return threads.submit(try_parts, parsed, Blind()).result()


def _key(request: TrialRequest) -> str:
    ours = [
        (str(file), file.stat().st_mtime_ns)
        for name in _TRIED
        for file in sorted((SOURCE_ROOT / name).rglob("*.py"))
    ]
    files = read_hooks(request.hooks, request.data).model_dump_json()
    content = [request.model_dump_json(), files, ours]
    return hashlib.sha256(json.dumps([*content, sys.version]).encode()).hexdigest()[:32]


@dataclass(slots=True)
class _Seen:
    """The messages of the process so far."""

    where: str = "hooks"
    what: str = "starting the trial of your parts"
    deadline: float = 0.0
    findings: Findings | None = None


def try_apart(request: TrialRequest) -> Findings:
    """Try the parts in a process of its own; one that ends or hangs becomes a finding."""
    with temporary_folder() as folder:
        output, stack = folder / "output", folder / "stack"
        command = ["-P", "-m", "flows.checks.trial.trial_process", str(output), str(stack)]
        process = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=_environment(request) | {"TMPDIR": str(folder)},  # what it leaves goes with it
        )
        try:
            assert process.stdin is not None
            process.stdin.write(request.model_dump_json().encode() + b"\n")
            process.stdin.flush()  # left open: its end says that this process is gone
            seen = _follow(process)
            hangs = process.poll() is None and seen.findings is None
        finally:
            _end(process)
        if seen.findings is not None:
            return seen.findings
        line = _hung(seen, stack) if hangs else _gone(seen, process.returncode, output)
        return Findings(problems=[line], cautions=[])


def _environment(request: TrialRequest) -> dict[str, str]:
    """Give the trial the secrets that options of the parts refer to, and no others."""
    referred = secrets_of(request.model_dump(mode="json"))
    return environment_without_secrets(os.environ) | referred


def _follow(process: subprocess.Popen[bytes]) -> _Seen:
    """Read what it tells until it is done, ends, or does not come to the end of a step."""
    assert process.stdout is not None
    now = time.monotonic()
    seen, over, rest = _Seen(deadline=now + IMPORT_SECONDS), now + _MOST_SECONDS, b""
    while seen.findings is None:
        left = min(seen.deadline, over) - time.monotonic()
        ready, _, _ = select.select([process.stdout], [], [], max(0.0, left))
        if not ready:
            return seen
        chunk = os.read(process.stdout.fileno(), 65536)
        if not chunk:
            process.wait(_GRACE_SECONDS)
            return seen
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            _take(seen, json.loads(line))
    return seen


def _take(seen: _Seen, told: dict[str, Any]) -> None:
    if "findings" in told:
        seen.findings = Findings.model_validate(told["findings"])
        return
    seen.where, seen.what = told["where"], told["what"]
    seen.deadline = time.monotonic() + told["seconds"] + _GRACE_SECONDS


def _end(process: subprocess.Popen[bytes]) -> None:
    """It, and what it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def _hung(seen: _Seen, stack: Path) -> str:
    return (
        f"{seen.where}: {seen.what} hangs and blocks its process{_stuck_at(stack)}; nothing else"
        " can run during that time: limit its time, and run blocking work with `asyncio.to_thread`"
    )


def _stuck_at(stack: Path) -> str:
    """The line of the user's file where it stands."""
    text = stack.read_text(errors="replace") if stack.is_file() else ""
    found = re.search(rf'File "[^"]*{HOOK_COPY.pattern}", line (\d+)', text)
    return f" ({found[1]}, line {found[2]})" if found else ""


def _gone(seen: _Seen, code: int, output: Path) -> str:
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    said = output.read_text(errors="replace").strip() if output.is_file() else ""
    last = f"; it printed last: {said[-_TAIL:]!r}" if said else ""
    return f"{seen.where}: {seen.what} ended its process ({how}){last}; raise an exception instead"
