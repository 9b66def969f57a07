"""RolloutBuffer: batches between sampling and training, none ever too old.

    while has_room:  admit() ──▶ collect ──▶ put(batch)
    take() ──▶ train, publish ──▶ trained(version)

It has room for `max_staleness` + 1 batches. Filled up before every step it holds, after the first
fill, one batch for each of the newest `max_staleness` + 1 versions; so the oldest, which is trained
next, is `max_staleness` versions old, and with 0 it is of the newest weights.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path

from engines.rollout.batch import StepBatch, dump_batches, load_batches
from engines.rollout.source import Cursor
from engines.types import Group

_FILE = "buffer.bin"


class RolloutBuffer:
    """Hand-over between a producer and a consumer that take turns."""

    def __init__(self, *, max_staleness: int, version: int = 0) -> None:
        self.max_staleness = max_staleness
        self._version = version
        self._ready: deque[StepBatch] = deque()
        self._surplus: list[Group] = []

    @property
    def waiting(self) -> int:
        """Batches that are sampled and not yet taken."""
        return len(self._ready)

    @property
    def has_room(self) -> bool:
        return self.waiting <= self.max_staleness

    @property
    def cursor(self) -> Cursor | None:
        """Where the problem source stood after the newest batch; None when none waits."""
        return self._ready[-1].cursor if self._ready else None

    def admit(self) -> tuple[int, list[Group], int]:
        """What the next batch begins with. -> policy version, reusable surplus, stale dropped.

        Surplus is reusable if it will not be too stale even when every batch before it updates.
        """
        trained_at = self._version + self.waiting
        fresh = [g for g in self._surplus if self._is_fresh(g, trained_at)]
        stale = len(self._surplus) - len(fresh)
        self._surplus = []
        return self._version, fresh, stale

    def keep_surplus(self, groups: list[Group]) -> int:
        """Offer unused groups to the next batch. -> how many cannot be kept (all when synchronous:
        the next step's policy is another one)."""
        if self.max_staleness == 0:
            return len(groups)
        self._surplus += groups
        return 0

    def put(self, batch: StepBatch) -> None:
        self._ready.append(batch)

    def take(self) -> StepBatch:
        """The batch to train on now. Raises AssertionError for one that must not be trained."""
        batch = self._ready.popleft()
        if not all(self._is_fresh(group, self._version) for group in batch.groups):
            raise AssertionError(
                f"a batch of version {batch.version} holds samples over {self.max_staleness}"
                f" versions older than the policy, which is at {self._version}"
            )
        return batch

    def trained(self, version: int) -> None:
        """The batch that was taken is done with; the fleet now serves `version`."""
        self._version = version

    def save(self, folder: Path) -> None:
        """Write what waits into a checkpoint's folder: no later weights could sample it again."""
        (folder / _FILE).write_bytes(dump_batches(self._ready, self._surplus))

    def restore(self, folder: Path, version: int) -> None:
        """Take up what waited at a checkpoint of a policy at `version`."""
        batches, self._surplus = load_batches((folder / _FILE).read_bytes())
        self._ready = deque(batches)
        self._version = version

    def _is_fresh(self, group: Group, trained_at: int) -> bool:
        versions = [s.oldest_version for s in group.samples if s.num_trained_tokens]
        return trained_at - min(versions, default=trained_at) <= self.max_staleness
