"""Stages that are planned at once, in threads, get the digests that one thread would get."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from infra.code.definitions import KNOWN, Module, read_module

pytestmark = pytest.mark.unit

COUNT, THREADS = 400, 8


def test_a_module_that_is_read_in_threads_has_the_digests_of_one_thread(
    tmp_path: Path,
) -> None:
    file = tmp_path / "many.py"
    file.write_text("\n".join(f"def f{i}():\n    return {i}" for i in range(COUNT)))
    alone = read_module(file, "tasks.many")
    wanted = {f"f{i}": alone.definition(f"f{i}").digest for i in range(COUNT)}
    KNOWN.clear()
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(5):
            # As it comes out of the home: what it defines is known, and nothing was parsed.
            kept = Module("tasks", False, names=set(wanted), source=file.read_bytes())
            together = Barrier(THREADS)

            def digests(number: int, kept: Module = kept, together: Barrier = together) -> None:
                together.wait()
                for name in [*wanted][-1 - number :: -THREADS]:
                    assert kept.definition(name).digest == wanted[name], name

            with ThreadPoolExecutor(THREADS) as pool:
                list(pool.map(digests, range(THREADS)))
    finally:
        sys.setswitchinterval(before)
