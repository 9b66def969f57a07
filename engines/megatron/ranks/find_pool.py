"""Finding the cluster's trainer pool, or starting it. The driver's side of `pool.py`."""

from __future__ import annotations

from typing import Any

from engines.keeper import open_keeper
from engines.megatron.ranks.pool import TrainerPool
from engines.megatron.ranks.rank import Rank, TrainerRank
from engines.raylink import code_tag, connect

_PREFIX = "trainer-pool-"
_CODE = (
    "engines/algorithms",
    "engines/batching.py",
    "engines/families",
    "engines/keeper.py",
    "engines/lease.py",
    "engines/megatron",
    "engines/raylink.py",
    "engines/sglang/http.py",
    "engines/types.py",
    "engines/weights",
    "infra/config.py",
    "infra/errors.py",
)
"""what a rank's process and its pool import"""


def open_pool(
    rank_class: type[Rank] = TrainerRank, name: str = "", gpus_per_rank: float | None = None
) -> Any:
    """The Ray actor handle of the one pool that runs this very code; started if need be.

    `gpus_per_rank` None means a whole GPU each where the cluster has any. Blocks like
    `raylink.connect` the first time. A test passes a stand-in and a name of its own.
    """
    connect()
    import ray

    if gpus_per_rank is None:
        gpus_per_rank = 1.0 if ray.cluster_resources().get("GPU") else 0.0
    return open_keeper(TrainerPool, _PREFIX, code_tag(*_CODE), name, (rank_class, gpus_per_rank))
