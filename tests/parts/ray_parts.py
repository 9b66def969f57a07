"""A Ray of a test's own."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import psutil

from infra.processes.leftovers import leftovers_of_dead, remove_leftovers

TRIES = 5


@contextmanager
def own_ray(settings: Mapping[str, str] | None = None, **options: Any) -> Generator[str]:
    """A cluster of 8 logical CPUs, which this process joins; -> its address.

    `settings` are variables of the environment while it runs, `options` go to `ray.init`. It ends
    with the block, and with it all its processes and its folder.
    """
    import ray

    chosen = {"RAY_AUTH_MODE": "disabled", **(settings or {})}
    kept = {name: os.environ.get(name) for name in chosen}
    os.environ |= chosen
    folder = ""
    try:
        for attempt in range(1, TRIES + 1):
            folder = tempfile.mkdtemp(prefix="tr-")  # socket paths are at most 107 bytes long
            try:
                context = ray.init(
                    num_cpus=8, namespace="tributary", include_dashboard=False,
                    log_to_driver=False, _temp_dir=folder, **options,
                )  # fmt: skip
                break
            except Exception:
                # Ray gives its raylet 30 s, which no setting changes and a busy machine exceeds.
                _end(folder)
                if attempt == TRIES:
                    raise
        yield context.address_info["gcs_address"]
    finally:
        workers = _workers(folder)
        ray.shutdown()
        _end(folder)
        psutil.wait_procs(workers, timeout=10)
        remove_leftovers(leftovers_of_dead())
        for name, value in kept.items():
            os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)


def _parts(folder: str) -> list[psutil.Process]:
    """The processes of the cluster in `folder`, less those that changed their titles."""
    return [p for p in psutil.Process().children(recursive=True) if _names(p, folder)]


def _workers(folder: str) -> list[psutil.Process]:
    """What those started: actors with titles of their own, and their servers."""
    found: list[psutil.Process] = []
    for part in _parts(folder):
        with suppress(psutil.NoSuchProcess):
            found += part.children(recursive=True)
    return found


def _end(folder: str) -> None:
    """Kill what Ray left of the cluster in `folder`, and remove that."""
    left = _parts(folder)
    for process in left:
        process.kill()
    psutil.wait_procs(left, timeout=10)
    shutil.rmtree(folder, ignore_errors=True)


def _names(process: psutil.Process, folder: str) -> bool:
    try:
        return folder in " ".join(process.cmdline())
    except psutil.Error:
        return False
