"""Producer: turns tickets into groups that wait to be trained on.

    admit ──▶ tickets ──▶ roll: all rollouts of a ticket at once, judged ──▶ emit: groups that teach
                                                                            wait in the buffer

The three are apart so that the loop decides what runs at the same time. A group teaches if its
rewards differ, or always where the advantage needs no spread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from engines.rollout.admission import Admission
from engines.rollout.group_buffer import GroupBuffer
from engines.rollout.protocols import PolicyVersion
from engines.rollout.records.journal import Finished, RolloutJournal
from engines.rollout.roller import Roller
from engines.rollout.tickets import Ticket, TicketSource
from engines.types import TRAINABLE, Group


@dataclass(slots=True)
class Sampled:
    """What was sampled between two updates."""

    version: int
    """of the policy"""
    groups: list[Group] = field(default_factory=list[Group])
    """in the order of their tickets"""
    kept: list[Group] = field(default_factory=list[Group])
    """those of them that can teach"""
    waves: int = 0
    seconds: float = 0.0
    """wall time of generation and judging"""
    recovered: int = 0
    """of the rollouts, those that an earlier attempt had finished"""
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
        self._admission = admission
        self._roller = roller
        self._buffer = buffer
        self._policy = policy
        self._group_size = group_size
        self._temperature = temperature
        self._needs_spread = needs_spread
        self._journal = journal
        self._known: Mapping[str, Finished] = {}
        self.recovered = 0
        """rollouts that an earlier attempt had finished"""

    async def recover(self) -> None:
        """Take up the rollouts that earlier attempts finished, of tickets still to come."""
        if self._journal is not None:
            self._known = await self._journal.read(self.source.next)

    def admit(self, steps_left: int, waves: int) -> list[Ticket]:
        """Tickets that may start now; empty when enough groups wait."""
        return self.source.draw(self._admission.tickets(len(self._buffer), steps_left, waves))

    async def roll(self, ticket: Ticket) -> Group:
        """A ticket's rollouts, judged, and durable soon. Raises EngineError."""
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
            self._buffer.put(group)
        return teaches

    async def flush(self) -> None:
        """All that was rolled is durable."""
        if self._journal is not None:
            await self._journal.flush()

    def _known_of(self, ticket: Ticket) -> dict[str, Finished]:
        """A ticket's rollouts of the present weights that an earlier attempt finished."""
        ids = [f"{ticket.group_id}#{index}" for index in range(self._group_size)]
        found = {name: self._known[name] for name in ids if name in self._known}
        found = {name: f for name, f in found.items() if f.is_of(self._policy.version)}
        self.recovered += len(found)
        return found

    def _keep(self, ticket: Ticket, rollout: Finished) -> None:
        if self._journal is not None:
            self._journal.keep(ticket.number, rollout)


def trainable(group: Group) -> Group:
    """The group without its failed and aborted samples."""
    kept = [s for s in group.samples if s.status in TRAINABLE and s.num_trained_tokens]
    return Group(group.problem, kept, group.ticket)
