"""The trainer's ranks that push weights together, as one of them sees the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar, cast

from infra.errors import EngineError, TributaryError

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

T = TypeVar("T")

WAIT_S = 600.0
"""what ranks wait for each other where nothing large is moved meanwhile"""


@dataclass(frozen=True, slots=True)
class Ranks:
    """This rank's place among all. The defaults are of a rank alone."""

    rank: int = 0
    world: int = 1
    stage: int = 0
    """pipeline stage: ranks of different stages hold different weights"""
    num_stages: int = 1
    shard: int = 0
    """which slice of each split weight: ranks of a stage with different shards hold one model"""
    num_shards: int = 1
    replica: int = 0
    """ranks of one stage and shard that hold the same: data and context parallelism"""
    num_replicas: int = 1
    shard_group: ProcessGroup | None = None
    """the ranks that hold the shards of this one's weights, in order"""
    control_group: ProcessGroup | None = None
    """all ranks, over the network of their hosts: while one of them waits for servers, the others
    must not wait in a collective of their GPUs, which ends their processes after a time"""

    @property
    def is_leader(self) -> bool:
        """Return whether this one tells servers when to pause and when to continue."""
        return self.rank == 0

    @property
    def is_sender(self) -> bool:
        """Return whether this one sends its stage's weights."""
        return self.shard == 0 and self.replica == 0

    def settle(self, action: Callable[[], T] | None = None, within_s: float = WAIT_S) -> T | None:
        """Do `action` here and wait until every rank has done its own, at most `within_s` seconds.

        If any failed, all raise: that rank its error, the others an EngineError that names it.
        """
        result, failed = None, None
        try:
            result = action() if action else None
        except Exception as error:
            failed = error
        told = self.gather("" if failed is None else _text(failed), within_s)
        if failed is not None:
            raise failed
        if problem := next((text for text in told if text), ""):
            raise EngineError(problem)
        return result

    def from_leader(self, action: Callable[[], T], within_s: float = WAIT_S) -> T:
        """Return what `action` gives on the leader, on every rank. Raises as `settle` does."""
        found = self.settle(action if self.is_leader else None, within_s)
        return cast("T", self.gather(found)[0])

    def gather(self, own: T, within_s: float = WAIT_S) -> list[T]:
        """Return every rank's value, on every rank. Raises EngineError if one is lost, or comes too
        late."""
        if self.world == 1:
            return [own]
        from torch.distributed import distributed_c10d as c10d

        gathered: list[T] = [own] * self.world
        c10d._set_pg_timeout(timedelta(seconds=within_s), self.control_group)  # noqa: SLF001
        try:
            c10d.all_gather_object(gathered, own, self.control_group)
        except RuntimeError as error:  # torch raises nothing else for a group
            reason = next(iter(str(error).strip().splitlines()), "no reason given")
            raise EngineError(
                f"rank {self.rank} waited for the trainer's other ranks, at most {within_s:.0f} s:"
                f" {reason}. Look at the log of a rank that ended or hangs"
            ) from error
        return gathered

    def send(self, tensor: Tensor, shard: int) -> None:
        """Send to the rank with that shard of the same weights, which calls `receive`."""
        import torch.distributed as dist

        dist.send(tensor, group=self.shard_group, group_dst=shard)
        if tensor.is_cuda:
            import torch

            # A GPU's send is only queued: without this all of them would be, each with its memory,
            # and wait while the receiver tells servers of the first ones.
            torch.cuda.current_stream(tensor.device).synchronize()

    def receive(self, tensor: Tensor, shard: int) -> None:
        import torch.distributed as dist

        dist.recv(tensor, group=self.shard_group, group_src=shard)


ALONE = Ranks()


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, TributaryError) else f"{type(error).__name__}: {error}"
