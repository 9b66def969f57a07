"""Producer: turns tickets into groups that wait to be trained on.

    admit ──▶ tickets ──▶ roll: all rollouts of a ticket at once, judged ──▶ emit: groups that teach
                                                                            wait in the buffer

The three are apart so that the loop decides what runs at the same time. Which groups teach is a
filter's to say (`engines.rollout.filters`).
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from engines.algorithms.spec import Keep
from engines.rollout.buffers import GroupBuffer
from engines.rollout.drivers.pace import Pace, Unfinished
from engines.rollout.filters import AskFilter, Drop
from engines.rollout.protocols import PolicyVersion
from engines.rollout.records.journals import Finished, RolloutJournal, TicketTurns, TurnJournal
from engines.rollout.records.take_log import Take
from engines.rollout.roller import RollsGroups, judge_together
from engines.rollout.tickets import Admission, Ticket, TicketSource
from engines.types import TRAINABLE, Group
from engines.weight_versions import NO_VERSION, WeightVersions
from infra.timeline import TICKETS, span


@dataclass(slots=True)
class Sampled:
    """Holds what was sampled between two updates."""

    groups: list[Group] = field(default_factory=list[Group])
    """in the order of their tickets"""
    kept: list[Group] = field(default_factory=list[Group])
    """those of them that can teach"""
    waves: int = 0
    """in which problems were drawn, or rounds of rollouts that go on in later steps; 0 where
    sampling goes on beside training"""
    seconds: float = 0.0
    """wall time of generation and judging"""
    waited_seconds: float = 0.0
    """of them, those in which the trainer waited"""
    recovered: int = 0
    """of the rollouts, those that an earlier attempt had finished"""
    recovered_tokens: int = 0
    """of the others' tokens, those of turns that an earlier attempt had taken"""
    rolling: int = 0
    """tickets still under way"""
    unfinished: Unfinished | None = None
    """of these, where their rollouts wait for the next step"""
    stale: int = 0
    """tickets that took too long: their rollouts are older than may be trained on"""
    filtered: Counter[str] = field(default_factory=Counter[str])
    """groups that may not teach, by the reason"""
    filter_fault: str = ""
    """what the filter did wrong first"""


class Producer:
    """The way of a ticket to the buffer, in three parts."""

    def __init__(
        self,
        *,
        source: TicketSource,
        admission: Admission,
        roller: RollsGroups,
        buffer: GroupBuffer,
        policy: PolicyVersion,
        group_size: int,
        temperature: float,
        keep: Keep | None = None,
        group_filter: AskFilter,
        journal: RolloutJournal | None = None,
        turns: TurnJournal | None = None,
    ) -> None:
        self.source = source
        self.admission = admission
        self._roller = roller
        self.buffer = buffer
        self._policy = policy
        self.group_size = group_size
        self.temperature = temperature
        """of the rollouts that begin from now on"""
        self._within = keep
        self._filter = group_filter
        self._journal = journal
        self._turns = turns
        self._known: Mapping[str, Finished] = {}
        self._taken: frozenset[int] = frozenset()
        self._repeated = NO_VERSION
        """the version that repeating an earlier attempt's steps leads to"""
        self._last_shared: float = math.inf
        """the newest version whose weights are those of an earlier attempt"""
        self.recovered = 0
        """rollouts that an earlier attempt had finished"""
        self.dropped_share = 0.0
        """of a wave's groups, those that may not teach: half of it is the last step's share, a
        quarter that of the step before, and so on"""

    @property
    def recovered_tokens(self) -> int:
        """Return the tokens of turns that an earlier attempt had taken, in rollouts that it had not
        finished."""
        return self._turns.recovered_tokens if self._turns is not None else 0

    async def recover(self, first: int, takes: Collection[Take] = ()) -> None:
        """Take up the rollouts that earlier attempts finished, of tickets from `first` on.

        The steps of `takes` will be repeated: with the same rollouts, and so to the same weights.
        """
        self._taken = frozenset(number for take in takes for number in take.tickets)
        self._repeated = max((take.version + 1 for take in takes), default=NO_VERSION)
        if self._journal is not None:
            self._known = await self._journal.read(first)
        if self._turns is not None:
            await self._turns.recover(first)

    def leave_earlier_attempt(self) -> None:
        """Repeat an earlier attempt's steps no more: from the next version on the weights are
        others than those that it had."""
        self._taken, self._repeated = frozenset(), NO_VERSION
        self._last_shared = min(self._last_shared, self._policy.version)

    async def roll(
        self,
        ticket: Ticket,
        pace: Pace | None = None,
        temperature: float | None = None,
        oldest_version: int | None = None,
    ) -> Group:
        """Return a ticket's rollouts, judged, and durable soon; at the present temperature, if not
        at another one. No token may be of a version before `oldest_version`; None: as old as may be
        trained on. Raises EngineError."""
        with span(TICKETS, f"ticket {ticket.number}", problem=ticket.problem.id):
            rollouts = await self._roller.roll_group(
                ticket.domain,
                ticket.problem,
                ticket.group_size or self.group_size,
                temperature=self.temperature if temperature is None else temperature,
                group_id=ticket.group_id,
                seed_name=ticket.group_id,
                known=self._known_of(ticket, oldest_version),
                on_finished=lambda rollout: self._keep(ticket, rollout),
                turns=self._turns_of(ticket, oldest_version),
                keep=self._within,
                pace=pace,
            )
            rollouts = await judge_together(ticket.domain, rollouts)
        samples = [sample for rollout in rollouts for sample in rollout.samples]
        return Group(ticket.problem, samples, ticket.number)

    async def drop_of(self, group: Group) -> Drop | None:
        """Why a group may not be trained on; None if it may."""
        if group.ticket in self._taken:  # an earlier attempt did
            return None
        if not trainable(group).samples:
            return Drop("nothing_trainable")
        return await self._filter(group)

    async def roll_and_filter(
        self,
        ticket: Ticket,
        pace: Pace | None = None,
        temperature: float | None = None,
        oldest_version: int | None = None,
    ) -> tuple[Group, Drop | None]:
        """Return a ticket's group as `roll` does, and why it may not be trained on. Raises
        EngineError."""
        group = await self.roll(ticket, pace, temperature, oldest_version)
        return group, await self.drop_of(group)

    async def roll_wave(
        self, most: int, recorded: Collection[int] = ()
    ) -> list[tuple[Group, Drop | None]]:
        """Draw tickets, `most` of them at most, and roll them in their order until as many groups
        may teach as the step still needs: as many as usual at once, then another one for each that
        is dropped. Which ones are rolled follows from their groups, never from the clock, and none
        is passed over: the next wave begins behind the last of them. `recorded`: what an earlier
        attempt trained on in this step. Raises EngineError."""
        at_once = self._usually_needed(most, recorded)
        spare, left = at_once - self._missing, most - at_once
        rolled: list[tuple[Group, Drop | None]] = []

        async def roll_on(ticket: Ticket) -> None:
            nonlocal spare, left
            while True:
                group, drop = await self.roll_and_filter(ticket)
                rolled.append((group, drop))
                if drop is None:
                    return
                spare -= 1
                if spare >= 0 or not left:
                    return
                left -= 1
                (ticket,) = self.source.draw(1)

        await asyncio.gather(*map(roll_on, self.source.draw(at_once)))
        return sorted(rolled, key=lambda pair: pair[0].ticket)

    def _usually_needed(self, most: int, recorded: Collection[int]) -> int:
        """Count the tickets of a wave that start at once: all where a rule chooses among the
        groups, and at least those that an earlier attempt trained on."""
        if not self.buffer.takes_oldest or self.dropped_share == 1:
            return most
        usual = int(self._missing / (1 - self.dropped_share))
        return min(most, max(usual, self.source.left_until(recorded)))

    @property
    def _missing(self) -> int:
        """Count the groups that the next step still needs."""
        return self.admission.groups_per_step - len(self.buffer)

    def emit(self, group: Group, drop: Drop | None, sampled: Sampled) -> None:
        """Let a group wait to be trained on if nothing drops it, and note in `sampled` which."""
        if drop is None:
            self.buffer.put(group)
            sampled.kept.append(group)
        else:
            sampled.filtered[drop.reason] += 1
            sampled.filter_fault = sampled.filter_fault or drop.fault

    async def flush(self) -> None:
        """All that was rolled so far is durable."""
        journals = [journal for journal in (self._journal, self._turns) if journal is not None]
        await asyncio.gather(*[journal.flush() for journal in journals])

    def _known_of(self, ticket: Ticket, oldest_version: int | None) -> dict[str, Finished]:
        """Return a ticket's rollouts that an earlier attempt finished, and that can be used."""
        size = ticket.group_size or self.group_size
        ids = [f"{ticket.group_id}#{index}" for index in range(size)]
        found = {name: self._known[name] for name in ids if name in self._known}
        if ticket.number in self._taken and len(found) < len(ids):  # a note was lost
            self.leave_earlier_attempt()
        if ticket.number not in self._taken:
            found = {name: f for name, f in found.items() if self._is_usable(f, oldest_version)}
        self.recovered += len(found)
        return found

    def _is_usable(self, rollout: Finished, oldest_version: int | None) -> bool:
        """Not one of weights that are too old by now, or of other weights than will have their
        version. One that failed is tried again: why it failed may be over by now."""
        oldest, newest = self._usable_versions(oldest_version)
        return not rollout.has_failed and rollout.is_of(oldest, newest)

    def _usable_versions(self, oldest_version: int | None) -> tuple[int, int]:
        now, staleness = self._policy.version, self.admission.max_staleness
        newest = max(now, self._repeated) if staleness else now
        oldest = now - staleness if oldest_version is None else oldest_version
        return oldest, int(min(newest, self._last_shared))

    def _turns_of(self, ticket: Ticket, oldest_version: int | None) -> TicketTurns | None:
        """Return those that an earlier attempt had from the engine, and where new ones are
        noted."""
        if self._turns is None:
            return None

        def is_usable(versions: WeightVersions) -> bool:
            oldest, newest = self._usable_versions(oldest_version)
            return all(oldest <= version <= newest for version in versions.sampled)

        return self._turns.of(ticket.number, is_usable)

    def _keep(self, ticket: Ticket, rollout: Finished) -> None:
        if self._journal is not None:
            self._journal.keep(ticket.number, rollout)


def trainable(group: Group) -> Group:
    """The group without its failed and aborted samples."""
    kept = [s for s in group.samples if s.status in TRAINABLE and s.num_trained_tokens]
    return Group(group.problem, kept, group.ticket)
