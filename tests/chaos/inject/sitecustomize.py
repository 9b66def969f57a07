"""Stops a process at a chosen moment so that the kill matrix can hit it there.

Python imports this at start in every process below a chaos run, whose PYTHONPATH names this folder.
A moment is a function of ours: when the run has armed it, the first call that reaches it says so in
a file and waits, bounded, until the run has done its killing. Nothing of the product knows of it.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

WAIT_S = 5.0
FOLDER = Path(os.environ.get("CHAOS_FOLDER", "/nonexistent"))

Test = Callable[..., bool]

# moment -> module, object path in it, and which of its calls are meant
MOMENTS: dict[str, tuple[str, str, Test]] = {
    "before-submit": (
        "tasks.attempts",
        "_submit",
        lambda work, place, claims, claim: work.spec.kind == "rl",
    ),
    "starting": ("tasks.rl", "run", lambda spec, context: True),
    "mid-generation": (
        "engines.rollout.journal",
        "RolloutJournal._note",
        lambda self, step, samples: step == 3,
    ),
    "mid-reward": (
        "engines.rollout.episode",
        "_judge",
        lambda domain, sample, transcript: sample.group_id.startswith("3."),
    ),
    "mid-train": (
        "engines.megatron.training",
        "Training.update",
        lambda self: self.steps_done == 5,
    ),
    "mid-publish": (
        "engines.weight_sync.shared_memory",
        "_send",
        lambda servers, placed, ranks, version: version == 3,
    ),
    # In the store but not visible yet, while the next step goes on.
    "mid-checkpoint": (
        "infra.storage",
        "Store.write",
        lambda self, path, data: "/step-00000002-a" in path and path.endswith("manifest.json"),
    ),
    "committing": (
        "infra.storage",
        "Store.create",
        lambda self, path, data: path.startswith("artifacts/rl/"),
    ),
}


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


def refuse_while_full(module: Any) -> None:
    """Every write to the store fails as on a full disk, while the run says so."""
    for name in ("write", "create", "upload_folder"):
        stock = getattr(module.Store, name)

        def call(*given: Any, _stock: Callable[..., Any] = stock, **named: Any) -> Any:
            if (FOLDER / "full").exists():
                where = given[2] if _stock.__name__ == "upload_folder" else given[1]
                raise module.StorageError(f"{given[0].root}/{where}: no space left on device")
            return _stock(*given, **named)

        setattr(module.Store, name, call)


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
        if not wanted:
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
            if fullname == "infra.storage":
                refuse_while_full(module)

        spec.loader.exec_module = execute  # type: ignore[method-assign]
        return spec


if "CHAOS_FOLDER" in os.environ:
    sys.meta_path.insert(0, Finder())
