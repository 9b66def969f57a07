"""A process that is the only rank of a model, outside of any stage."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from engines.megatron.parallel import start_parallel, stop_parallel
from engines.megatron.spec import Parallel
from infra.processes.ports import free_ports


@contextmanager
def one_rank() -> Generator[None]:
    """Megatron's process groups with this process alone, until the block ends."""
    (port,) = free_ports(1)
    start_parallel(0, 1, f"tcp://127.0.0.1:{port}", Parallel())
    try:
        yield
    finally:
        stop_parallel()
