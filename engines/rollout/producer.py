"""Producer: turns problems into the groups of a training step.

    round:  draw problems ──▶ all rollouts of all groups at once ──▶ judged groups
            groups that can teach are kept: whose rewards differ, or all where the advantage needs
            no spread; the others are replaced by fresh problems in the next round, until enough
            are kept or the rounds are used up

consumes: the problem source, the policy of the moment     produces: `StepBatch`

Groups keep the order of their problems whatever the order of arrival, so that a step is the same
whenever its rollouts are.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping
from functools import partial

from engines.rollout.batch import StepBatch
from engines.rollout.buffer import RolloutBuffer
from engines.rollout.records.journal import Finished, RolloutJournal
from engines.rollout.roller import Roller
from engines.rollout.source import Drawn, ProblemSource
from engines.types import TRAINABLE, Group, one_per_rollout


class Producer:
    """Samples one batch a step."""

    def __init__(
        self,
        *,
        roller: Roller,
        source: ProblemSource,
        groups_per_step: int,
        group_size: int,
        oversample: float,
        rounds: int,
        temperature: float,
        needs_spread: bool = True,
        journal: RolloutJournal | None = None,
    ) -> None:
        """`needs_spread`: a group of equal rewards teaches nothing, so it is replaced. Not so where
        a critic, a teacher or the whole batch says what each rollout should have brought."""
        self._roller = roller
        self.source = source
        self._wanted = groups_per_step
        self._group_size = group_size
        self._oversample = oversample
        self._rounds = rounds
        self._temperature = temperature
        self._needs_spread = needs_spread
        self._journal = journal

    async def produce(self, buffer: RolloutBuffer, step: int) -> StepBatch:
        """The batch that step `step` will train on, of the present policy. Raises EngineError."""
        version, surplus, stale = buffer.admit()
        batch, unused = await self.collect(step, version, surplus)
        batch.dropped += stale + buffer.keep_surplus(unused)
        return batch

    async def collect(
        self, step: int, version: int, surplus: list[Group]
    ) -> tuple[StepBatch, list[Group]]:
        """Sample one step's groups. -> the batch, and groups with signal that it has no room for.

        Raises EngineError.
        """
        began = time.monotonic()
        known = await self._journal.finished(step, version) if self._journal else {}
        informative = list(surplus)
        rolled: list[Group] = []
        rounds = 0
        while len(informative) < self._wanted and rounds < self._rounds:
            missing = self._wanted - len(informative)
            drawn = self.source.draw(math.ceil(missing * self._oversample))
            groups = await self._roll(drawn, version, step, rounds, known)
            rolled += groups
            informative += [g for g in groups if self._teaches(g)]
            rounds += 1
        if self._journal is not None:
            await self._journal.flush()
        batch = StepBatch(
            version=version,
            groups=informative[: self._wanted],
            rolled=rolled,
            wanted=self._wanted,
            reused=min(len(surplus), self._wanted),
            dropped=0,
            rounds=rounds,
            seconds=time.monotonic() - began,
            cursor=self.source.cursor,
            recovered=sum(
                s.rollout_id in known for g in rolled for s in one_per_rollout(g.samples)
            ),
        )
        return batch, informative[self._wanted :]

    async def _roll(
        self,
        drawn: list[Drawn],
        version: int,
        step: int,
        round_: int,
        known: Mapping[str, Finished],
    ) -> list[Group]:
        """One group a problem, in the order of the problems whichever ends first."""
        rolled = await asyncio.gather(
            *[
                self._roller.roll_group(
                    domain,
                    problem,
                    self._group_size,
                    version=version,
                    temperature=self._temperature,
                    # a problem may come again in a later round or step: its group is another
                    label=f"{step}.{round_}.{position}",
                    known=known,
                    on_finished=partial(self._keep, step),
                )
                for position, (domain, problem) in enumerate(drawn)
            ]
        )
        return [
            Group(problem, [sample for rollout in rollouts for sample in rollout.samples])
            for (_, problem), rollouts in zip(drawn, rolled, strict=True)
        ]

    def _teaches(self, group: Group) -> bool:
        return group.has_signal if self._needs_spread else bool(trainable(group).samples)

    def _keep(self, step: int, rollout: Finished) -> None:
        if self._journal is not None:
            self._journal.keep(step, rollout)


def trainable(group: Group) -> Group:
    """The group without its failed and aborted samples."""
    kept = [s for s in group.samples if s.status in TRAINABLE and s.num_trained_tokens]
    return Group(group.problem, kept)
