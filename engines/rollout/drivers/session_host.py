"""SessionHost: the policy as one rollout sees it.

A driver opens token sessions, lets the policy take turns in them, and finishes. Budget, seeds and
ids are the host's: a driver can neither exceed the first nor repeat the others.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from types import MappingProxyType

import orjson

from engines.algorithms.spec import Keep
from engines.rollout.drivers.pace import RolloutPace
from engines.rollout.drivers.session import TokenSession
from engines.rollout.drivers.thoughts import write_thought
from engines.rollout.metrics import FILLS_CONTEXT
from engines.rollout.protocols import ChatFormat, Generate, ThoughtBudget
from engines.types import (
    AssistantTurn,
    Finish,
    Generation,
    Json,
    Message,
    Problem,
    Rollout,
    Sample,
    Sampling,
    Status,
    Transcript,
)
from infra.errors import InputError
from infra.json_text import reason_text

_CONTEXT_RESERVE = 8
"""positions that SGLang keeps free at the end of its context"""

_ROLLOUTS_PER_ROUTE = 16
"""of a large group: one server need not take all of it"""

_INTERRUPTIONS = 5
"""of a turn, one after another, between which nothing is written"""

_PAUSE_S = 0.1
"""after the first of them; longer after each further one"""

_NONE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Attempt:
    """Which rollout of which problem, and how it is sampled."""

    problem: Problem
    domain: str
    prompt_ids: list[int]
    """the problem as the chat format writes it"""
    group_id: str
    index: int
    """position in its group"""
    seed_name: str
    """what its seeds follow from, with stage seed, index, session and turn"""
    temperature: float
    max_new_tokens: int
    """generated tokens, over all turns of all sessions"""
    stage_seed: int
    context_length: int
    top_p: float = 1.0
    """of an evaluation; what is trained on has `keep` in its place"""
    keep: Keep | None = None
    thought: ThoughtBudget | None = None
    """of each turn; None: as the model likes"""

    @property
    def rollout_id(self) -> str:
        return f"{self.group_id}#{self.index}"

    @property
    def route(self) -> str:
        """That of neighbours in its group, whose turns begin as its own do."""
        return f"{self.group_id}/{self.index // _ROLLOUTS_PER_ROUTE}"


@dataclass(frozen=True, slots=True)
class End:
    """How a rollout ends, and why."""

    status: Status
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Turn:
    """What the policy wrote, and whether the rollout can go on."""

    said: AssistantTurn | None
    """None: it wrote nothing"""
    end: End | None = None
    """None: the rollout can go on"""


class SessionHost:
    """The host of one rollout's sessions, which may take turns at the same time."""

    def __init__(
        self,
        generate: Generate,
        chat: ChatFormat,
        attempt: Attempt,
        pace: RolloutPace | None = None,
    ) -> None:
        """Without a `pace` it writes as much at once as its budget has."""
        self.chat = chat
        self._generate = generate
        self._attempt = attempt
        self._pace = pace
        self._context = attempt.context_length - _CONTEXT_RESERVE
        self._sessions: list[TokenSession] = []
        self._turns: list[int] = []
        """taken in each session"""
        self._forced: list[int] = []
        """tokens of each that the host put into a turn"""
        self._promised = 0
        """tokens that turns under way may still write"""
        self._under_way = 0
        self._idle_since = time.monotonic()

    @property
    def idle_seconds(self) -> float:
        """Time since a turn was under way, or the rollout waited for what others have."""
        return 0.0 if self._under_way else time.monotonic() - self._idle_since

    @contextmanager
    def busy(self) -> Generator[None]:
        """While the block runs it is not idle."""
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way, self._idle_since = self._under_way - 1, time.monotonic()

    @property
    def prompt_ids(self) -> Sequence[int]:
        """The problem as the chat format writes it: what a session usually begins with."""
        return self._attempt.prompt_ids

    @property
    def context_length(self) -> int:
        """Most tokens of a session."""
        return self._context

    @property
    def tokens_left(self) -> int:
        """Return what is left of the rollout's budget, beside what turns under way may still
        write."""
        used = self._promised + sum(s.num_generated for s in self._sessions)
        return self._attempt.max_new_tokens - used

    @property
    def sampling(self) -> Mapping[str, Json]:
        """Return how every turn is sampled, by the names of requests."""
        of = self._attempt
        kept = of.keep.model_dump() if of.keep is not None else {"top_p": of.top_p}
        return {"temperature": of.temperature, "n": 1, **kept}

    def open(self, prompt_ids: Sequence[int]) -> TokenSession:
        """Return a new session; each that the policy wrote in becomes a sample."""
        session = TokenSession(self._generate, prompt_ids)
        self._sessions.append(session)
        self._turns.append(0)
        self._forced.append(0)
        return session

    async def turn(
        self,
        session: TokenSession,
        *,
        max_new_tokens: int | None = None,
        is_last: bool = False,
        asked: Problem | None = None,
    ) -> Turn:
        """Let the policy write in a session. `is_last`: nothing follows in it. `asked`: whose tools
        it may call, if not the problem's. Raises EngineError.

        A turn that uses the rollout's budget up is cut off there, and ends the rollout as
        truncated. It may use all that is left, so turns at the same time need `max_new_tokens`.
        """
        budget = self.tokens_left
        if max_new_tokens is not None:
            budget = min(budget, max_new_tokens)
        room = self._context - len(session.tokens)
        if room < 1 and not session.num_generated:
            reason = f"a prompt of {len(session.tokens)} tokens {FILLS_CONTEXT}"
            return Turn(None, End(Status.FAILED, reason))
        out_of = "token budget" if budget <= room else "context length"
        if min(budget, room) < 1:
            return Turn(None, End(Status.TRUNCATED, out_of))
        began, before = len(session.tokens), session.num_generated
        problem = asked or self._attempt.problem
        finish = await self._write(session, min(budget, room), is_last, problem)
        if finish == "abort":
            return Turn(None, End(Status.ABORTED, "generation was interrupted again and again"))
        if len(session.tokens) == began:
            return Turn(None, End(Status.ABORTED, "the engine returned no token"))
        said = self.chat.parse(problem, session.tokens[began:], session.tokens[:began])
        if finish == "length":
            if session.num_generated - before < min(budget, room):  # what was put in took the rest
                out_of = "context length"
            return Turn(said, End(Status.TRUNCATED, out_of))
        return Turn(said, End(Status.MALFORMED, said.error) if said.error else None)

    async def _write(
        self, session: TokenSession, most: int, is_last: bool, problem: Problem
    ) -> Finish:
        """Have the policy write up to `most` tokens, its thought within the budget for it."""
        with self.busy():
            return await self._write_turn(session, most, is_last, problem)

    async def _write_turn(
        self, session: TokenSession, most: int, is_last: bool, problem: Problem
    ) -> Finish:
        seed, budget = self._next_seed(session), self._attempt.thought
        if budget is None:
            return await self._write_on(session, most, seed, is_last)
        number, end = self._sessions.index(session), session.num_generated + most

        async def write(count: int, ends: tuple[int, ...]) -> Finish:
            return await self._write_on(session, count, seed, False, ends)

        def force(ids: Sequence[int]) -> None:
            session.extend(ids)
            self._forced[number] += len(ids)

        context = self._context
        ended = await write_thought(
            session, self.chat, problem, budget, most, context, write, force
        )
        if ended is not None:
            return ended
        left = min(end - session.num_generated, self._context - len(session.tokens))
        return "length" if left < 1 else await self._write_on(session, left, seed, is_last)

    async def _write_on(
        self,
        session: TokenSession,
        most: int,
        seed: int,
        is_last: bool,
        ends: tuple[int, ...] = (),
    ) -> Finish:
        """Where engine or pace interrupt it, go on from the tokens so far: as it would have gone
        on, as draws hang on positions. `ends`: tokens that end it beside the end of a turn."""
        in_vain = 0
        self._promised += most  # also between interruptions: nobody else may take it
        try:
            while True:
                async with self._piece(session, most) as piece:
                    is_end = is_last and piece == most
                    generation = await self._sampled(session, piece, seed, is_end, ends)
                most -= len(generation.token_ids)
                self._promised -= len(generation.token_ids)
                is_cut = generation.finish == "length" and len(generation.token_ids) == piece
                if generation.finish != "abort" and not (is_cut and most):
                    return generation.finish
                if most < 1:
                    return "length"
                in_vain = 0 if len(generation.token_ids) else in_vain + 1
                if in_vain == _INTERRUPTIONS:
                    return "abort"
                await asyncio.sleep(_PAUSE_S * in_vain)
        finally:
            self._promised -= most

    def _piece(self, session: TokenSession, most: int) -> AbstractAsyncContextManager[int]:
        """-> how many of `most` tokens may be asked for at once."""
        if self._pace is None:
            return nullcontext(most)
        return self._pace.piece(session.num_generated, most)

    async def _sampled(
        self, session: TokenSession, most: int, seed: int, is_last: bool, ends: tuple[int, ...]
    ) -> Generation:
        made = await session.turn(
            Sampling(
                max_new_tokens=most,
                temperature=self._attempt.temperature,
                top_p=self._attempt.top_p,
                keep=self._attempt.keep,
                stop_token_ids=(*self.chat.stop_token_ids, *ends),
                seed=seed,
                is_last=is_last,
                route=self._attempt.route,
            )
        )
        if self._pace is not None:
            self._pace.wrote(made)
        return made

    def _next_seed(self, session: TokenSession) -> int:
        """Return the seed of the session's next turn, whatever the other sessions do meanwhile."""
        number = self._sessions.index(session)
        turn, self._turns[number] = self._turns[number], self._turns[number] + 1
        of = self._attempt
        return sampling_seed(of.stage_seed, of.seed_name, of.index, number, turn)

    def finish(
        self,
        end: End,
        messages: Sequence[Message],
        sessions: Sequence[TokenSession] | None = None,
        *,
        files: Mapping[str, str] = _NONE,
        notes: Sequence[Mapping[str, Json]] = (),
    ) -> Rollout:
        """The rollout, to be judged by `messages`, by the text of the last of its sessions, and by
        `files`.

        `sessions`: those to train on, if not all. `notes`: what is kept with each of them, where
        the policy wrote in all. Raises EngineError if their tokens were changed, and InputError for
        notes and files that are no JSON.
        """
        try:
            orjson.dumps([*notes, dict(files)])
        except TypeError as error:
            raise InputError(f"a rollout's notes and files must be JSON: {error}") from error
        end = End(end.status, reason_text(end.reason))
        chosen = self._sessions if sessions is None else sessions
        written = [s for s in chosen if s.num_generated] or list(chosen[:1])
        if not written:
            written = [self.open(self.prompt_ids)]
        turns = sum(m.role == "assistant" for m in messages)
        samples = tuple(
            self._sample(session, branch, end, turns) for branch, session in enumerate(written)
        )
        for sample, note in zip(samples, notes, strict=False):
            sample.metadata |= note
        if files:
            samples[0].metadata["files"] = dict(files)
        transcript = Transcript(
            problem=self._attempt.problem,
            messages=tuple(messages),
            status=end.status,
            num_tokens=sum(s.num_generated for s in written),
            reason=end.reason,
            raw=self.chat.decode(written[-1].response_ids),
            files=dict(files),
        )
        return Rollout(samples, transcript)

    def _sample(self, session: TokenSession, branch: int, end: End, turns: int) -> Sample:
        of = self._attempt
        session.check(of.rollout_id)
        metadata: dict[str, Json] = {"turns": turns}
        if forced := self._forced[self._sessions.index(session)]:
            metadata["forced_tokens"] = forced
        return Sample(
            problem_id=of.problem.id,
            domain=of.domain,
            group_id=of.group_id,
            rollout_id=of.rollout_id,
            sample_index=of.index,
            branch=branch,
            tokens=session.tokens,
            loss_mask=session.loss_mask,
            logprobs=session.logprobs,
            weight_versions=session.weight_versions,
            experts=session.experts,
            kept=session.kept,
            status=end.status,
            reason=end.reason,
            temperature=of.temperature,
            token_budget=of.max_new_tokens,
            metadata=metadata,
        )


def sampling_seed(stage_seed: int, name: str, sample_index: int, session: int, turn: int) -> int:
    """Return a 31-bit seed that depends on nothing but its arguments: not on the process or the
    batch.

    `name`: a ticket's group id, or a problem's id where nothing is trained.
    """
    text = f"{stage_seed}\0{name}\0{sample_index}\0{session}\0{turn}"
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") & 0x7FFF_FFFF
