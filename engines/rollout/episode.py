"""Roll one problem out: prompt → turn → parse → environment → ... → judged sample.

How a rollout ends:
    the model ends its turn and calls no tool, or the environment is done   COMPLETED
    token, turn or context budget ran out                                   TRUNCATED
    the turn broke the format (a bad tool call, an unclosed thought)        MALFORMED, reward 0
    the engine aborted, or answered nothing                                 ABORTED
    the environment or a reward raised                                      FAILED

A lost engine is none of these: EngineError passes through and ends the stage.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from engines.rollout.protocols import ChatFormat, Generate, LiveDomain
from engines.rollout.records.journal import Finished
from engines.rollout.seeds import sampling_seed
from engines.rollout.session import TokenSession
from engines.types import (
    AssistantTurn,
    Episode,
    Message,
    Problem,
    ProtocolBreak,
    Sample,
    Sampling,
    Status,
    Transcript,
)
from infra.errors import InfrastructureError
from infra.processes.part_process import PartFailed

_CONTEXT_RESERVE = 8
"""positions that SGLang keeps free at the end of its context"""


@dataclass(frozen=True, slots=True)
class Rollout:
    """A finished rollout: the sample to train on and the transcript that was judged."""

    sample: Sample
    transcript: Transcript


@dataclass(frozen=True, slots=True)
class Attempt:
    """Which rollout of which problem, and how it is sampled."""

    domain: LiveDomain
    problem: Problem
    prompt_ids: list[int]
    group_id: str
    index: int
    """position in its group"""
    version: int
    """the policy version it starts under; enters the seeds"""
    temperature: float

    @property
    def rollout_id(self) -> str:
        return f"{self.group_id}#{self.index}"


@dataclass(frozen=True, slots=True)
class _End:
    status: Status
    reason: str = ""


class Roller:
    """Rolls problems out against one policy. Stateless between rollouts."""

    def __init__(
        self, *, generate: Generate, chat: ChatFormat, context_length: int, seed: int
    ) -> None:
        self._generate = generate
        self._chat = chat
        self._context = context_length - _CONTEXT_RESERVE
        self._seed = seed

    async def roll_group(
        self,
        domain: LiveDomain,
        problem: Problem,
        size: int,
        *,
        version: int,
        temperature: float,
        label: str = "",
        known: Mapping[str, Finished] = MappingProxyType({}),
        on_finished: Callable[[Rollout], None] = lambda made: None,
    ) -> list[Rollout]:
        """`size` rollouts of one problem at once; `label` makes the group's id unique.

        Rollouts in `known` (by id) are taken from there, all others are sampled and handed to
        `on_finished` as they end.
        """
        prompt_ids = self._chat.prompt_ids(problem)
        group_id = f"{label}/{problem.id}" if label else problem.id

        async def roll(index: int) -> Rollout:
            attempt = Attempt(domain, problem, prompt_ids, group_id, index, version, temperature)
            found = known.get(attempt.rollout_id)
            if found is not None and _has_prompt(found.sample, prompt_ids):
                return self._read_back(attempt, found)
            made = await self.roll_out(attempt)
            on_finished(made)
            return made

        tasks = [asyncio.create_task(roll(i), name=f"rollout {group_id}#{i}") for i in range(size)]
        return list(await asyncio.gather(*tasks))

    def _read_back(self, attempt: Attempt, found: Finished) -> Rollout:
        sample = found.sample
        raw = self._chat.decode(sample.tokens[len(attempt.prompt_ids) :])
        transcript = Transcript(
            problem=attempt.problem,
            messages=found.turns,
            status=sample.status,
            num_tokens=sample.num_trained_tokens,
            reason=sample.reason,
            raw=raw,
        )
        return Rollout(sample, transcript)

    async def roll_out(self, attempt: Attempt) -> Rollout:
        """One rollout, judged. Raises EngineError only."""
        session = TokenSession(self._generate, attempt.prompt_ids)
        messages: list[Message] = []
        end = await self._converse(attempt, session, messages)
        sample = session.sample(
            problem_id=attempt.problem.id,
            domain=attempt.domain.name,
            group_id=attempt.group_id,
            index=attempt.index,
            status=end.status,
        )
        sample.reason = end.reason
        sample.token_budget = attempt.domain.max_new_tokens
        sample.metadata["turns"] = sum(m.role == "assistant" for m in messages)
        transcript = Transcript(
            problem=attempt.problem,
            messages=tuple(messages),
            status=end.status,
            num_tokens=session.num_generated,
            reason=end.reason,
            raw=self._chat.decode(session.response_ids),
        )
        await _judge(attempt.domain, sample, transcript)
        return Rollout(sample, transcript)

    async def _converse(
        self, attempt: Attempt, session: TokenSession, messages: list[Message]
    ) -> _End:
        """Take turns until the end; appends to `session` and `messages`."""
        episode: Episode | None = None
        try:
            for turn in range(attempt.domain.max_turns):
                said = await self._turn(attempt, session, messages, turn)
                if isinstance(said, _End):
                    return said
                if attempt.domain.environment is None:
                    return _End(Status.COMPLETED)
                try:
                    if episode is None:
                        episode = await attempt.domain.environment.start(attempt.problem)
                    over = await self._react(attempt, session, messages, episode, said)
                except InfrastructureError:
                    raise
                except ProtocolBreak as broken:
                    return _End(Status.MALFORMED, str(broken))
                except PartFailed as error:
                    return _End(Status.FAILED, f"environment {error}")
                except Exception as error:  # the environment is a user's code: its fault is data
                    return _End(Status.FAILED, f"environment: {type(error).__name__}: {error}")
                if over:
                    return _End(Status.COMPLETED)
            return _End(Status.TRUNCATED, f"{attempt.domain.max_turns} turns are used up")
        finally:
            if episode is not None:
                with contextlib.suppress(Exception):  # how it ended is decided already
                    await episode.close()

    async def _turn(
        self, attempt: Attempt, session: TokenSession, messages: list[Message], turn: int
    ) -> AssistantTurn | _End:
        """One turn of the model, or how the rollout ended in it."""
        budget = attempt.domain.max_new_tokens - session.num_generated
        room = self._context - len(session.tokens)
        if room < 1 and turn == 0:
            return _End(
                Status.FAILED, f"a prompt of {len(session.tokens)} tokens fills the context"
            )
        if min(budget, room) < 1:
            return _End(Status.TRUNCATED, "token budget" if budget < 1 else "context length")
        generation = await session.turn(
            Sampling(
                max_new_tokens=min(budget, room),
                temperature=attempt.temperature,
                stop_token_ids=self._chat.stop_token_ids,
                seed=sampling_seed(
                    self._seed, attempt.problem.id, attempt.index, attempt.version, turn
                ),
                is_last=attempt.domain.environment is None or turn + 1 == attempt.domain.max_turns,
            )
        )
        if generation.finish == "abort":
            return _End(Status.ABORTED, "generation was interrupted")
        if not len(generation.token_ids):
            return _End(Status.ABORTED, "the engine returned no token")
        parsed = self._chat.parse(attempt.problem, generation.token_ids)
        messages.append(parsed.message())
        if generation.finish == "length":
            return _End(Status.TRUNCATED, "token budget" if budget <= room else "context length")
        if parsed.error:
            return _End(Status.MALFORMED, parsed.error)
        return parsed

    async def _react(
        self,
        attempt: Attempt,
        session: TokenSession,
        messages: list[Message],
        episode: Episode,
        said: AssistantTurn,
    ) -> bool:
        """Hand the turn to the environment; append what it answers. True when it is over."""
        step = await episode.step(said)
        new = step.messages
        if step.done or not new:
            messages.extend(new)
            return True
        last = int(session.tokens[-1])
        session.extend(self._chat.continuation_ids(attempt.problem, messages, new, last))
        messages.extend(new)
        return False


def _has_prompt(sample: Sample, prompt_ids: list[int]) -> bool:
    return sample.tokens[: len(prompt_ids)].tolist() == prompt_ids


async def _judge(domain: LiveDomain, sample: Sample, transcript: Transcript) -> None:
    """Put reward, breakdown and reason on the sample. MALFORMED earns 0 without a judge."""
    if sample.status is Status.MALFORMED:
        sample.rewards = {"outcome": 0.0}
        return
    if sample.status in (Status.FAILED, Status.ABORTED):
        return
    judgement = await domain.judge.judge(transcript)
    sample.reason = judgement.reason or sample.reason
    if judgement.failed:
        sample.status = Status.FAILED
        return
    sample.reward = judgement.reward
    sample.rewards = dict(judgement.breakdown)
