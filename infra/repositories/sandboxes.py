"""The sandboxes that run a repository's code: one pool for a process and a level of confinement."""

from __future__ import annotations

import functools
import os

from infra.sandbox.kinds import process
from infra.sandbox.limits import Limits
from infra.sandbox.pool import Pool
from infra.sandbox.python import Demand

LIMITS = Limits(seconds=10.0, cpu_seconds=4, disk=4 << 20, output=64_000)
WARM = 2
AT_ONCE = 8


def pool(demand: Demand) -> Pool:
    """Raises InputError, when a sandbox is taken, where the machine offers less than `demand`."""
    return _pool_of(os.getpid(), demand)


@functools.cache
def _pool_of(owner: int, demand: Demand) -> Pool:
    """`owner`: threads and sockets do not outlive a fork."""
    return Pool(lambda: process.start(LIMITS, demand=demand), warm=WARM, most=AT_ONCE)
