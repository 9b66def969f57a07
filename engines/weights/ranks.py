"""The trainer's ranks that push weights together, as one of them sees the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar, cast

from infra.errors import EngineError, TributaryError

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

T = TypeVar("T")


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

    @property
    def is_leader(self) -> bool:
        """Whether this one tells servers when to pause and when to continue."""
        return self.rank == 0

    @property
    def is_sender(self) -> bool:
        """Whether this one sends its stage's weights."""
        return self.shard == 0 and self.replica == 0

    def settle(self, action: Callable[[], T] | None = None) -> T | None:
        """Do `action` here and wait until every rank has done its own.

        If any failed, all raise: that rank its error, the others an EngineError that names it.
        """
        result, failed = None, None
        try:
            result = action() if action else None
        except Exception as error:
            failed = error
        told = self.gather("" if failed is None else _text(failed))
        if failed is not None:
            raise failed
        if problem := next((text for text in told if text), ""):
            raise EngineError(problem)
        return result

    def from_leader(self, action: Callable[[], T]) -> T:
        """What `action` gives on the leader, on every rank. Raises as `settle` does."""
        found = self.settle(action if self.is_leader else None)
        return cast("T", self.gather(found)[0])

    def gather(self, own: T) -> list[T]:
        """Every rank's, on every rank."""
        if self.world == 1:
            return [own]
        import torch.distributed as dist

        gathered: list[T] = [own] * self.world
        dist.all_gather_object(gathered, own)
        return gathered

    def send(self, tensor: Tensor, shard: int) -> None:
        """To the rank with that shard of the same weights, which calls `receive`."""
        import torch.distributed as dist

        dist.send(tensor, group=self.shard_group, group_dst=shard)

    def receive(self, tensor: Tensor, shard: int) -> None:
        import torch.distributed as dist

        dist.recv(tensor, group=self.shard_group, group_src=shard)


ALONE = Ranks()


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, TributaryError) else f"{type(error).__name__}: {error}"
