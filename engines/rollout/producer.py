"""Producer: turns tickets into groups that wait to be trained on.

    admit ──▶ tickets ──▶ roll: all rollouts of a ticket at once, judged ──▶ emit: groups that teach
                                                                            wait in the buffer

The three are apart so that the loop decides what runs at the same time. A group teaches if its
rewards differ, or always where the advantage needs no spread.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from engines.rollout.admission import Admission
from engines.rollout.group_buffer import GroupBuffer
from engines.rollout.protocols import PolicyVersion
from engines.rollout.records.journal import Finished, RolloutJournal
from engines.rollout.records.take_log import Take
from engines.rollout.roller import Roller
from engines.rollout.tickets import Ticket, TicketSource
from engines.types import TRAINABLE, Group
from engines.weight_versions import NO_VERSION
from infra.timeline import TICKETS, span


@dataclass(slots=True)
class Sampled:
    """What was sampled between two updates."""

    groups: list[Group] = field(default_factory=list[Group])
    """in the order of their tickets"""
    kept: list[Group] = field(default_factory=list[Group])
    """those of them that can teach"""
    waves: int = 0
    """0 where sampling goes on beside training"""
    seconds: float = 0.0
    """wall time of generation and judging"""
    waited_seconds: float = 0.0
    """of them, those in which the trainer waited"""
    recovered: int = 0
    """of the rollouts, those that an earlier attempt had finished"""
    rolling: int = 0
    """tickets still under way"""
    stale: int = 0
    """tickets that took too long: their rollouts are older than may be trained on"""
    agreement: dict[str, float] = field(default_factory=dict[str, float])
    """the engine compared with the weights that it sampled with, where that was done at once"""


class Producer:
    """The way of a ticket to the buffer, in three parts."""

    def __init__(
        self,
        *,
        source: TicketSource,
        admission: Admission,
        roller: Roller,
        buffer: GroupBuffer,
        policy: PolicyVersion,
        group_size: int,
        temperature: float,
        needs_spread: bool = True,
        journal: RolloutJournal | None = None,
    ) -> None:
        """`needs_spread`: a group of equal rewards teaches nothing, so it is replaced. Not so where
        a critic, a teacher or the whole batch says what each rollout should have brought."""
        self.source = source
        self.admission = admission
        self._roller = roller
        self.buffer = buffer
        self._policy = policy
        self._group_size = group_size
        self._temperature = temperature
        self._needs_spread = needs_spread
        self._journal = journal
        self._known: Mapping[str, Finished] = {}
        self._taken: frozenset[int] = frozenset()
        self._repeated = NO_VERSION
        """the version that repeating an earlier attempt's steps leads to"""
        self.recovered = 0
        """rollouts that an earlier attempt had finished"""

    async def recover(self, first: int, takes: Collection[Take] = ()) -> None:
        """Take up the rollouts that earlier attempts finished, of tickets from `first` on.

        The steps of `takes` will be repeated: with the same rollouts, and so to the same weights.
        """
        self._taken = frozenset(number for take in takes for number in take.tickets)
        self._repeated = max((take.version + 1 for take in takes), default=NO_VERSION)
        if self._journal is not None:
            self._known = await self._journal.read(first)

    async def roll(self, ticket: Ticket) -> Group:
        """A ticket's rollouts, judged, and durable soon. Raises EngineError."""
        with span(TICKETS, f"ticket {ticket.number}", problem=ticket.problem.id):
            rollouts = await self._roller.roll_group(
                ticket.domain,
                ticket.problem,
                self._group_size,
                temperature=self._temperature,
                group_id=ticket.group_id,
                seed_name=ticket.group_id,
                known=self._known_of(ticket),
                on_finished=lambda rollout: self._keep(ticket, rollout),
            )
        samples = [sample for rollout in rollouts for sample in rollout.samples]
        return Group(ticket.problem, samples, ticket.number)

    def emit(self, group: Group) -> bool:
        """Let a group wait to be trained on, if it can teach. -> whether it does."""
        teaches = group.has_signal if self._needs_spread else bool(trainable(group).samples)
        if teaches:
            self.buffer.put(group)
        return teaches

    async def flush(self) -> None:
        """All that was rolled so far is durable."""
        if self._journal is not None:
            await self._journal.flush()

    def _known_of(self, ticket: Ticket) -> dict[str, Finished]:
        """A ticket's rollouts that an earlier attempt finished, and that can be used."""
        ids = [f"{ticket.group_id}#{index}" for index in range(self._group_size)]
        found = {name: self._known[name] for name in ids if name in self._known}
        if ticket.number in self._taken and len(found) < len(ids):
            # A note was lost: from here on the weights are others than those of the attempt before.
            self._taken, self._repeated = frozenset(), NO_VERSION
        if ticket.number not in self._taken:
            found = {name: f for name, f in found.items() if self._is_usable(f)}
        self.recovered += len(found)
        return found

    def _is_usable(self, rollout: Finished) -> bool:
        """Not one of weights that are too old by now, or of other weights than will have their
        version. One that failed is tried again: why it failed may be over by now."""
        now = self._policy.version
        staleness = self.admission.max_staleness
        newest = max(now, self._repeated) if staleness else now
        return not rollout.has_failed and rollout.is_of(now - staleness, newest)

    def _keep(self, ticket: Ticket, rollout: Finished) -> None:
        if self._journal is not None:
            self._journal.keep(ticket.number, rollout)


def trainable(group: Group) -> Group:
    """The group without its failed and aborted samples."""
    kept = [s for s in group.samples if s.status in TRAINABLE and s.num_trained_tokens]
    return Group(group.problem, kept, group.ticket)
