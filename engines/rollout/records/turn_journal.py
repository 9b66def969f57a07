"""TurnJournal: turns of unfinished rollouts, so that a later attempt does not sample them again.

    rollout asks for a turn ─▶ noted by an earlier attempt? ─▶ yes: that one
                                       └ no: the engine's, and noted soon

A rollout starts again from its problem, with its environment; what the policy said is repeated as
long as its prompts stay the same to the token. A turn that ends its rollout is not noted: the
rollout is, as a whole, by `RolloutJournal`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from engines.rollout.protocols import Generate
from engines.rollout.records.journal import prompt_checksum
from engines.rollout.records.note_writer import NoteWriter
from engines.rollout.records.notes import Notes
from engines.rollout.records.packed import pack_samples, unpack_samples
from engines.types import Generation, Sample, Sampling, Status, TokenIds
from engines.weight_versions import WeightVersions

EVERY_S = 1.0
"""most work on turns that a kill repeats, beside that of the turns under way"""

IsUsable: TypeAlias = Callable[[WeightVersions], bool]
Place: TypeAlias = tuple[str, int | None, int]
"""rollout, seed of the turn, tokens before it"""


@dataclass(frozen=True, slots=True)
class NotedTurn:
    """A turn, and where it belongs."""

    place: Place
    prompt: int
    """checksum of the tokens before it"""
    made: Generation

    @property
    def rollout(self) -> str:
        return self.place[0]


@dataclass(frozen=True, slots=True)
class TicketTurns:
    """Of one ticket's rollouts: the turns that were noted before, and who hears of new ones."""

    known: Mapping[Place, NotedTurn]
    """those of other tickets may be among them"""
    is_usable: IsUsable
    keep: Callable[[NotedTurn], None]
    count_recovered: Callable[[int], None]
    """told the tokens of a turn that is not sampled again"""

    def engine_of(self, rollout: str, generate: Generate) -> Generate:
        """What a rollout asks for its turns in the engine's place."""

        async def turn(prompt_ids: TokenIds, sampling: Sampling) -> Generation:
            place = (rollout, sampling.seed, len(prompt_ids))
            prompt = prompt_checksum(prompt_ids)
            found = self.known.get(place)
            if found and _fits(found, prompt, sampling) and self._may_be_used(found):
                self.count_recovered(len(found.made.token_ids))
                return found.made
            made = await generate(prompt_ids, sampling)
            if len(made.token_ids) and (made.finish == "abort" or not sampling.is_last):
                self.keep(NotedTurn(place, prompt, made))
            return made

        return turn

    def usable(self, rollouts: Collection[str]) -> list[NotedTurn]:
        """Those of these rollouts that may be used now."""
        found = [turn for turn in self.known.values() if turn.rollout in rollouts]
        return [turn for turn in found if self._may_be_used(turn)]

    def _may_be_used(self, turn: NotedTurn) -> bool:
        return self.is_usable(turn.made.weight_versions)


@dataclass(slots=True)
class TurnJournal:
    """Of one stage."""

    notes: Notes
    recovered_tokens: int = 0
    """that earlier attempts had sampled"""
    _known: dict[Place, NotedTurn] = field(default_factory=dict[Place, NotedTurn])
    _writer: NoteWriter[NotedTurn] = field(init=False)

    def __post_init__(self) -> None:
        self._writer = NoteWriter(self.notes, "turns", pack_turns, EVERY_S)

    async def recover(self, first: int) -> None:
        """Take up the turns that earlier attempts noted, of tickets from `first` on."""
        pieces = await asyncio.to_thread(self.notes.notes, "turns", first)
        self._known = {turn.place: turn for piece in pieces for turn in _read(piece)}

    def of(self, ticket: int, is_usable: IsUsable) -> TicketTurns:
        """`is_usable`: whether what these weights wrote may still be trained on."""
        return TicketTurns(
            known=self._known,
            is_usable=is_usable,
            keep=lambda turn: self._writer.keep(ticket, turn),
            count_recovered=self._count_recovered,
        )

    async def flush(self) -> None:
        """All that was noted so far is durable, or the store's error is raised."""
        await self._writer.flush()

    def _count_recovered(self, tokens: int) -> None:
        self.recovered_tokens += tokens


def _fits(noted: NotedTurn, prompt: int, sampling: Sampling) -> bool:
    return noted.prompt == prompt and len(noted.made.token_ids) <= sampling.max_new_tokens


def pack_turns(turns: Sequence[NotedTurn]) -> bytes:
    beside = [[*turn.place, turn.prompt, turn.made.finish] for turn in turns]
    return pack_samples([_as_sample(turn) for turn in turns], beside)


def _as_sample(turn: NotedTurn) -> Sample:
    made = turn.made
    return Sample(
        problem_id="",
        domain="",
        group_id="",
        rollout_id=turn.place[0],
        sample_index=0,
        tokens=made.token_ids,
        loss_mask=np.ones(len(made.token_ids), np.bool_),
        logprobs=made.logprobs,
        weight_versions=made.weight_versions,
        status=Status.COMPLETED,
    )


def _read(piece: bytes) -> list[NotedTurn]:
    """Turns of a note; none if a crash of the machine left it empty or incomplete."""
    try:
        return unpack_turns(piece)
    except ValueError:
        return []


def unpack_turns(packed: bytes) -> list[NotedTurn]:
    """The counterpart of `pack_turns`. Raises ValueError for data that are damaged."""
    samples, beside = unpack_samples(packed)
    return [
        NotedTurn(
            (rollout, seed, position),
            prompt,
            Generation(s.tokens, s.logprobs, s.weight_versions, finish),
        )
        for s, (rollout, seed, position, prompt, finish) in zip(samples, beside, strict=True)
    ]
