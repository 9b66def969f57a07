"""Journals: finished rollouts, and turns of unfinished ones, so that no attempt samples them again.

    keep(rollout) ──▶ one note for all that finished meanwhile ──▶ the stage's notes
    a later attempt ── read(first) ──▶ rollouts by id; what is missing is sampled again

    rollout asks for a turn ─▶ noted by an earlier attempt? ─▶ yes: that one
                                       └ no: the engine's, and noted soon
    who plays the user is asked for a reply ─▶ the same

A rollout is a function of its seeds and weights, so one read back is the one that would be sampled
again. The notes are also the stage's data on disk: with a checkpoint and the take log, later steps
can be repeated without an engine. Numbers are tickets in RL, and the model's turn in `distill` and
`evaluate`. An unfinished rollout starts again from its problem, with its environment; what the
policy said is repeated as long as its prompts stay the same to the token. What was cut off before
the budget of now goes on there, as sessions side by side share one. A turn that ends a rollout is
not noted: the rollout is, as a whole.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Generic, Protocol, TypeAlias, TypeVar

import numpy as np

from engines.rollout.protocols import Generate
from engines.rollout.records.packing import dump_turns, load_turns, pack_samples, unpack_samples
from engines.types import Generation, Message, Sample, Sampling, Status, TokenIds
from engines.weight_versions import WeightVersions
from infra.store.removal import NoteKind


class Notes(Protocol):
    """What attempts wrote down before a checkpoint contained it."""

    def note(self, kind: NoteKind, number: int, data: bytes) -> None: ...

    def notes(self, kind: NoteKind, first: int, last: int | None = None) -> Sequence[bytes]:
        """Under numbers from `first` to `last` (None: to the end), in the order in which they were
        written: those of an earlier attempt first."""
        ...


Piece = TypeVar("Piece")


class NoteWriter(Generic[Piece]):
    """Use it in one event loop; writing happens in a thread, one note at a time.

    A note takes up what was kept in `every_s` seconds: many small writes cost a sweep more than a
    kill may.
    """

    def __init__(
        self,
        notes: Notes,
        kind: NoteKind,
        encode: Callable[[Sequence[Piece]], bytes],
        every_s: float = 0.0,
    ) -> None:
        self._notes, self._encode, self._every_s = notes, encode, every_s
        self._kind: NoteKind = kind
        self._waiting: list[tuple[int, Piece]] = []
        self._writing: asyncio.Task[None] | None = None
        self._failure: Exception | None = None
        self._hurry = asyncio.Event()
        self._noted = asyncio.Event()
        """set after each note"""
        self._num_kept = self._num_durable = 0
        """pieces"""

    def keep(self, number: int, piece: Piece) -> None:
        """Write it soon: with the others that are kept until the writer is free, under the highest
        of their numbers."""
        self._num_kept += 1
        self._waiting.append((number, piece))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())

    async def flush(self) -> None:
        """All that was kept so far is durable, or the store's error is raised."""
        wanted = self._num_kept
        while self._writing is not None and self._num_durable < wanted:
            self._hurry.set()
            self._noted.clear()
            await self._noted.wait()
        if self._failure is not None:
            raise self._failure

    async def _write(self) -> None:
        try:
            while self._waiting:
                await self._gather()
                taken, self._waiting = self._waiting, []
                number = max(number for number, _ in taken)
                await asyncio.to_thread(self._note, number, [piece for _, piece in taken])
                self._num_durable += len(taken)
                self._noted.set()
        except Exception as error:  # nobody awaits this task: the next flush says it
            self._failure = error
        finally:
            self._writing = None
            self._noted.set()

    async def _gather(self) -> None:
        """Let more pieces come first, unless someone waits for the note."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._hurry.wait(), self._every_s)
        self._hurry.clear()

    def _note(self, number: int, pieces: Sequence[Piece]) -> None:
        self._notes.note(self._kind, number, self._encode(pieces))


@dataclass(frozen=True, slots=True)
class Finished:
    """A rollout that is over: its judged samples, and the turns after the problem's messages."""

    samples: tuple[Sample, ...]
    turns: tuple[Message, ...]
    prompt: int
    """checksum of the problem's prompt, by which one with another prompt is told apart"""
    round: int = 1
    """of its group's pace, in which it ended"""

    @property
    def rollout_id(self) -> str:
        return self.samples[0].rollout_id

    @property
    def has_failed(self) -> bool:
        """Return whether it ended for a reason that may be over at another try."""
        return self.samples[0].status in (Status.ABORTED, Status.FAILED)

    def is_of(self, oldest: int, newest: int) -> bool:
        """Return whether weights of these versions alone wrote it."""
        return all(oldest <= v <= newest for s in self.samples for v in s.weight_versions.sampled)


def prompt_checksum(prompt_ids: TokenIds) -> int:
    return zlib.crc32(np.asarray(prompt_ids, np.int32).tobytes())


class RolloutJournal:
    """A note takes up what finished in `every_s` seconds."""

    def __init__(self, notes: Notes, every_s: float = 0.0) -> None:
        self._notes = notes
        self._writer = NoteWriter(notes, "rollouts", pack_rollouts, every_s)

    async def read(self, first: int, last: int | None = None) -> dict[str, Finished]:
        """Rollouts that earlier attempts finished, by id: those whose piece has a number from
        `first` to `last` (None: to the end)."""
        pieces = await asyncio.to_thread(self._notes.notes, "rollouts", first, last)
        found = [rollout for piece in pieces for rollout in _read(piece)]
        return {f.rollout_id: f for f in found}

    def keep(self, number: int, rollout: Finished) -> None:
        """Write it soon, under its number or a higher one."""
        self._writer.keep(number, rollout)

    async def flush(self) -> None:
        """All that was kept so far is durable, or the store's error is raised."""
        await self._writer.flush()


def pack_rollouts(finished: Sequence[Finished]) -> bytes:
    beside = [[len(f.samples), dump_turns(f.turns), f.prompt, f.round] for f in finished]
    return pack_samples([s for f in finished for s in f.samples], beside)


def _read(piece: bytes) -> list[Finished]:
    """Rollouts of a note; none if a crash of the machine left it empty or incomplete."""
    try:
        return unpack_rollouts(piece)
    except ValueError:
        return []


def unpack_rollouts(packed: bytes) -> list[Finished]:
    """The counterpart of `pack_rollouts`. Raises ValueError for data that are damaged."""
    samples, beside = unpack_samples(packed)
    rest = iter(samples)
    return [
        Finished(tuple(islice(rest, count)), load_turns(turns), prompt, round)
        for count, turns, prompt, round in beside
    ]


EVERY_S = 1.0
"""most work on turns that a kill repeats, beside that of the turns under way"""

IsUsable: TypeAlias = Callable[[WeightVersions], bool]

Place: TypeAlias = tuple[str, int | None, int]
"""rollout, seed of the turn, tokens before it"""

_REPLY = -1
"""in the place of tokens before a reply: who gives it has other tokens than the policy"""

Say: TypeAlias = Callable[[], Awaitable[str]]


async def _said_anew(seed: int, say: Say) -> str:
    return await say()


_reply: ContextVar[Callable[[int, Say], Awaitable[str]]] = ContextVar("reply", default=_said_anew)


async def reply_as_before(seed: int, say: Say) -> str:
    """Return what somebody beside the policy says in the present rollout: what an earlier attempt
    heard, else what `say` gives, which is noted soon. `seed` follows from all said before."""
    return await _reply.get()(seed, say)


@dataclass(frozen=True, slots=True)
class NotedTurn:
    """A turn, and where it belongs."""

    place: Place
    prompt: int
    """checksum of the tokens before it"""
    made: Generation
    temperature: float
    """at which it was sampled"""

    @property
    def rollout(self) -> str:
        return self.place[0]


@dataclass(frozen=True, slots=True)
class TicketTurns:
    """The turns of one ticket's rollouts that were noted before, and who hears of new ones."""

    known: Mapping[Place, NotedTurn]
    """those of other tickets may be among them"""
    is_usable: IsUsable
    keep: Callable[[NotedTurn], None]
    count_recovered: Callable[[int], None]
    """told the tokens of a turn that is not sampled again"""

    def engine_of(self, rollout: str, generate: Generate) -> Generate:
        """Return what a rollout asks for its turns in the engine's place."""

        async def turn(prompt_ids: TokenIds, sampling: Sampling) -> Generation:
            place = (rollout, sampling.seed, len(prompt_ids))
            prompt = prompt_checksum(prompt_ids)
            found = self.known.get(place)
            if found and _fits(found, prompt, sampling) and self._may_be_used(found):
                self.count_recovered(len(found.made.token_ids))
                return _as_asked(found.made, sampling)
            made = await generate(prompt_ids, sampling)
            if len(made.token_ids) and (made.finish == "abort" or not sampling.is_last):
                self.keep(NotedTurn(place, prompt, made, sampling.temperature))
            return made

        return turn

    def repeat_replies(self, rollout: str) -> None:
        """Have `reply_as_before` repeat its replies, in this task and in those that it starts."""

        async def reply(seed: int, say: Say) -> str:
            place = (rollout, seed, _REPLY)
            if (found := self.known.get(place)) is not None:
                return found.made.token_ids.astype(np.uint8).tobytes().decode()
            said = await say()
            self.keep(_noted_reply(place, said))
            return said

        _reply.set(reply)

    def usable(self, rollouts: Collection[str]) -> list[NotedTurn]:
        """Return those of these rollouts that may be used now."""
        found = [turn for turn in self.known.values() if turn.rollout in rollouts]
        return [turn for turn in found if self._may_be_used(turn)]

    def _may_be_used(self, turn: NotedTurn) -> bool:
        return self.is_usable(turn.made.weight_versions)


@dataclass(slots=True)
class TurnJournal:
    """The turns of one stage."""

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
        self._known = {turn.place: turn for piece in pieces for turn in _read_turns(piece)}

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
    is_same = noted.prompt == prompt and noted.temperature == sampling.temperature
    return is_same and len(noted.made.token_ids) <= sampling.max_new_tokens


def _noted_reply(place: Place, said: str) -> NotedTurn:
    """Put its bytes where a turn has tokens; no version of the policy wrote them."""
    text = np.frombuffer(said.encode(), np.uint8).astype(np.int32)
    made = Generation(text, np.zeros(len(text), np.float32), WeightVersions(), "stop")
    return NotedTurn(place, prompt=0, made=made, temperature=0.0)


def _as_asked(made: Generation, sampling: Sampling) -> Generation:
    """A turn that was cut off where this one may go on is the first piece of it."""
    may_go_on = made.finish == "length" and len(made.token_ids) < sampling.max_new_tokens
    return replace(made, finish="abort") if may_go_on else made


def pack_turns(turns: Sequence[NotedTurn]) -> bytes:
    beside = [[*turn.place, turn.prompt, turn.made.finish, turn.temperature] for turn in turns]
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
        experts=made.experts,
        kept=made.kept,
    )


def _read_turns(piece: bytes) -> list[NotedTurn]:
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
            Generation(s.tokens, s.logprobs, s.weight_versions, finish, s.experts, s.kept),
            temperature,
        )
        for s, (rollout, seed, position, prompt, finish, temperature) in zip(
            samples, beside, strict=True
        )
    ]
