"""Stops a process at a chosen moment so that the kill matrix can hit it there.

Python imports this at start in every process below a chaos run, whose PYTHONPATH names this folder.
A moment is a function of ours: when the run has armed it, the first call that reaches it says so in
a file and waits, bounded, until the run has done its killing. Nothing of the product knows of it.
"""

from __future__ import annotations

import dataclasses
import errno
import importlib.abc
import importlib.util
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

WAIT_S = 5.0
FOLDER = Path(os.environ.get("CHAOS_FOLDER", "/nonexistent"))

Test = Callable[..., bool]

FAR = 14
"""a ticket that the second or third step of `general-rl` draws, and no other stage"""


def _ticket(rollout: str) -> int:
    """Example: "14/general/rl/14#3" -> 14; -1 where nothing is trained."""
    number = rollout.partition("/")[0]
    return int(number) if number.isdecimal() else -1


# moment -> module, object path in it, and which of its calls are meant
MOMENTS: dict[str, tuple[str, str, Test]] = {
    "before-submit": (
        "tasks.durable.attempts",
        "_submit",
        lambda work, place, claims, claim: work.spec.kind == "rl",
    ),
    "starting": ("tasks.rl.body", "run", lambda spec, context: True),
    "mid-generation": (
        "engines.rollout.records.journals",
        "NoteWriter._note",
        lambda self, number, pieces: self._kind == "rollouts" and number >= FAR,
    ),
    "mid-reward": (
        "engines.rollout.roller",
        "_judge",
        lambda domain, rollout: _ticket(rollout.id) >= FAR,
    ),
    "mid-train": (
        "engines.megatron.train.training",
        "Training.update",
        lambda self: self.steps_done == 5,
    ),
    "mid-publish": (
        "engines.weights.update",
        "Update.end",
        lambda self, check=None: self._in_parts and self._version == 3,
    ),
    "mid-turn": (
        "engines.rollout.drivers.session_host",
        "SessionHost._sampled",
        lambda self, session, most, seed, is_last, ends: _ticket(self._attempt.group_id) >= FAR,
    ),
    "mid-take": (
        "engines.rollout.records.take_log",
        "TakeLog.write",
        lambda self, take: take.step == 3,
    ),
    "mid-evaluation": (
        "engines.rollout.roller",
        "_judge",
        lambda domain, rollout: (
            rollout.id.startswith("evaluation/") and max(rollout.weight_versions, default=0) == 2
        ),
    ),
    # In the store but not visible yet, while the next step goes on.
    "mid-checkpoint": (
        "infra.store.store",
        "Store.write",
        lambda self, path, data, **_: "/step-00000002-a" in path and path.endswith("manifest.json"),
    ),
    "saving": (
        "infra.store.store",
        "Store.upload_folder",
        lambda self, local, path: "checkpoints/rl/" in path and "/step-00000002-a" in path,
    ),
    "uploading": (
        "infra.store.store",
        "Store.upload_folder",
        lambda self, local, path: path.startswith("artifacts/rl/"),
    ),
    "committing": (
        "infra.store.store",
        "Store.create",
        lambda self, path, data: path.startswith("artifacts/rl/"),
    ),
    "replay-mid-train": (
        "engines.megatron.train.training",
        "Training.update",
        lambda self: self.steps_done == 5,
    ),
    "replay-mid-checkpoint": (
        "infra.store.store",
        "Store.write",
        lambda self, path, data, **_: (
            path.startswith("checkpoints/replay/")
            and "/step-00000002-a" in path
            and path.endswith("manifest.json")
        ),
    ),
    "distill-mid-generation": (
        "infra.store.store",
        "Store.write",
        lambda self, path, data, **_: (
            path.startswith("checkpoints/distill/") and "/rollouts/" in path
        ),
    ),
    "distill-committing": (
        "infra.store.store",
        "Store.create",
        lambda self, path, data: path.startswith("artifacts/distill/"),
    ),
    "evaluate-mid-load": (
        "engines.sglang.fleet",
        "Fleet.load",
        lambda self, model, version: version == 2,
    ),
    "evaluate-mid-generation": (
        "infra.store.store",
        "Store.write",
        lambda self, path, data, **_: (
            path.startswith("checkpoints/evaluate/") and "/rollouts/00000001/" in path
        ),
    ),
    "evaluate-committing": (
        "infra.store.store",
        "Store.create",
        lambda self, path, data: path.startswith("artifacts/evaluate/"),
    ),
}
SLOW_S = 1.0
"""what an operation of a slow store takes longer"""
TOOL_S = 8.0
"""how long the program lasts that is hit: its killer looks for it first"""
NONSENSE = (b"<html>busy</html>", b"{}", b"[]", b'{"output_ids": [1', b"null")


def reach(moment: str) -> None:
    """Say that the moment is here, if it is the armed one and the first; wait for the kill."""
    armed = FOLDER / f"armed-{moment}"
    reached = FOLDER / "reached"
    try:
        os.rename(armed, reached)
    except OSError:
        return
    deadline = time.monotonic() + WAIT_S
    while reached.exists() and time.monotonic() < deadline:
        time.sleep(0.01)


def watched(moment: str, stock: Callable[..., Any], is_meant: Test) -> Callable[..., Any]:
    def call(*given: Any, **named: Any) -> Any:
        if is_meant(*given, **named):
            reach(moment)
        return stock(*given, **named)

    return call


def disturb_store(module: Any) -> None:
    """While the run says so: each write fails as on a full disk, or everything takes longer. Once,
    when the run says so: a write stops half way."""
    store = module.Store
    for name in ("write", "create", "upload_folder"):
        setattr(store, name, _refused_while_full(module, getattr(store, name)))
    for name in ("read", "write", "create", "exists", "listdir", "upload_folder"):
        setattr(store, name, _slowed(getattr(store, name)))
    write, copy = store.write, module._copy_hashed

    def torn_write(self: Any, path: str, data: bytes, *, sync: bool = False) -> None:
        """Half of it is there, as on a store that cannot replace a file at once."""
        if not path.endswith(".pulse") and _take("torn"):
            write(self, path, data[: len(data) // 2])
            raise module.explain(_io_error(path), "write", self.url(path))
        write(self, path, data, sync=sync)

    def torn_copy(source: Path, target: Path, on_progress: Callable[[], object]) -> str:
        if _take("torn"):
            data = source.read_bytes()
            target.write_bytes(data[: len(data) // 2])
            raise _io_error(target)
        return copy(source, target, on_progress)

    store.write, module._copy_hashed = torn_write, torn_copy


def _refused_while_full(module: Any, stock: Callable[..., Any]) -> Callable[..., Any]:
    def call(*given: Any, **named: Any) -> Any:
        if (FOLDER / "full").exists():
            where = given[2] if stock.__name__ == "upload_folder" else given[1]
            raise module.StorageError(f"{given[0].root}/{where}: no space left on device")
        return stock(*given, **named)

    call.__name__ = stock.__name__
    return call


def _slowed(stock: Callable[..., Any]) -> Callable[..., Any]:
    def call(*given: Any, **named: Any) -> Any:
        if (FOLDER / "slow").exists():
            time.sleep(SLOW_S)
        return stock(*given, **named)

    return call


def _take(flag: str) -> bool:
    """Whether the run asked for it; true for one caller."""
    try:
        os.rename(FOLDER / flag, FOLDER / f"{flag}-taken")
    except OSError:
        return False
    return True


def _io_error(path: object) -> OSError:
    return OSError(errno.EIO, os.strerror(errno.EIO), str(path))


class WrongAnswers:
    """Around a server's application: while the run says so, it answers 500, or nonsense."""

    def __init__(self, app: Any) -> None:
        self._app, self._nonsense = app, itertools.cycle(NONSENSE)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        refusing, garbage = ((FOLDER / name).exists() for name in ("refusing", "garbage"))
        if scope["type"] != "http" or not (refusing or garbage):
            await self._app(scope, receive, send)
            return
        body = b"internal server error" if refusing else next(self._nonsense)
        status = 500 if refusing else 200
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": body})


def disturb_server(module: Any) -> None:
    module.app.add_middleware(WrongAnswers)


def prolong_program(module: Any) -> None:
    """The tool's program that is hit lasts long enough to be hit; what it prints stays."""
    stock = module._run

    def call(code: str, limits: Any, mechanisms: Any) -> Any:
        if code and (FOLDER / "armed-mid-tool").exists():
            threading.Timer(1.0, reach, ("mid-tool",)).start()
            code = f"import time; time.sleep({TOOL_S})\n{code}"
            limits = dataclasses.replace(limits, seconds=60.0)
        return stock(code, limits, mechanisms)

    module._run = call


def hold_judge(module: Any) -> None:
    """The process that is hit has a question and has not answered it."""
    stock = module.MathJudge._ask

    def call(self: Any, *given: Any) -> Any:
        if self._process is not None and (FOLDER / "armed-mid-judgement").exists():
            os.kill(self._process.pid, signal.SIGSTOP)
            threading.Timer(0.3, reach, ("mid-judgement",)).start()
        return stock(self, *given)

    module.MathJudge._ask = call


CHANGES: dict[str, Callable[[Any], None]] = {
    "infra.store.store": disturb_store,
    "infra.sandbox.python": prolong_program,
    "rewards.math": hold_judge,
    "sglang.srt.entrypoints.http_server": disturb_server,
}


def put(module: Any, moment: str, path: str, is_meant: Test) -> None:
    *owners, name = path.split(".")
    owner = module
    for part in owners:
        owner = getattr(owner, part)
    setattr(owner, name, watched(moment, getattr(owner, name), is_meant))


class Finder(importlib.abc.MetaPathFinder):
    """Lets the others find a module, then wraps what happens after it has run."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        wanted = {m: (p, t) for m, (name, p, t) in MOMENTS.items() if name == fullname}
        if not wanted and fullname not in CHANGES:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            sys.meta_path.insert(0, self)
        if spec is None or spec.loader is None:
            return None
        stock = spec.loader.exec_module

        def execute(module: Any) -> None:
            stock(module)
            for moment, (place, is_meant) in wanted.items():
                put(module, moment, place, is_meant)
            if fullname in CHANGES:
                CHANGES[fullname](module)

        spec.loader.exec_module = execute
        return spec


if "CHAOS_FOLDER" in os.environ:
    sys.meta_path.insert(0, Finder())
