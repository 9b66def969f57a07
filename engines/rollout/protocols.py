"""What the rollout code needs from the parts beside it, as Protocols with few methods.

`GenerationClient.generate`, `Chat`, `Rubric` and `TrainerGroup` satisfy them; so the dataflow
between them is tested without an engine, and knows nothing about how they work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from engines.types import (
    AssistantTurn,
    Generation,
    Message,
    Problem,
    Sampling,
    TokenIds,
    Transcript,
)

if TYPE_CHECKING:
    from engines.step_inputs import StepInputs, TrainedStep, Values
    from engines.weights.transport import PublishReport


DRIVERS: Mapping[str, str] = {
    "conversation": "engines.rollout.drivers.driver:Conversation",
    "harness": "engines.agents.harness:Harness",
    "library": "engines.agents.library_driver:LibraryDriver",
}

SOURCES: Mapping[str, str] = {
    "in-turns": "engines.rollout.tickets:TicketSource",
    "weighted": "engines.rollout.sources:Weighted",
    "by-difficulty": "engines.rollout.sources:ByDifficulty",
}

FILTERS: Mapping[str, str] = {
    "can-teach": "engines.rollout.filters:CanTeach",
    "outcome-between": "engines.rollout.filters:OutcomeBetween",
    "every": "engines.rollout.filters:Every",
}

BUFFERS: Mapping[str, str] = {
    "oldest-first": "engines.rollout.buffers:GroupBuffer",
}


@dataclass(frozen=True, slots=True)
class ThoughtBudget:
    """How long the thought of a turn may be. Example: ThoughtBudget(tokens=256, waits=1)"""

    tokens: int | None = None
    """after which a thought is ended; None: when the model ends it"""
    waits: int = 0
    """how often a thought that ends earlier goes on all the same"""


class Generate(Protocol):
    """One turn of the policy. Raises EngineError when no server answers."""

    async def __call__(self, prompt_ids: TokenIds, sampling: Sampling) -> Generation: ...


class ChatFormat(Protocol):
    """How conversations become token ids and back."""

    @property
    def stop_token_ids(self) -> tuple[int, ...]: ...

    def decided(self, problem: Problem) -> Problem:
        """With `thinking` decided, as the model is asked it and as rewards judge it."""
        ...

    def prompt_ids(self, problem: Problem) -> list[int]: ...

    def continuation_ids(
        self,
        problem: Problem,
        turns: Sequence[Message],
        new: Sequence[Message],
        last_token: int | None,
    ) -> list[int]: ...

    def turn_ids(self, problem: Problem, turn: Message) -> list[int]: ...

    def parse(
        self, problem: Problem, token_ids: TokenIds, before: TokenIds = ()
    ) -> AssistantTurn: ...

    def decode(self, token_ids: TokenIds) -> str: ...

    def text_ids(self, text: str) -> list[int]: ...

    @property
    def thought_end_ids(self) -> tuple[int, ...]:
        """The token that ends a thought; empty where several do."""
        ...

    def open_thought(self, problem: Problem, token_ids: TokenIds) -> bool | None:
        """Return whether these first tokens of a turn leave a thought open; None: one may still
        begin.
        """
        ...

    def thought_closing_ids(self, token_ids: TokenIds) -> list[int]:
        """Return what ends the thought that a turn's first tokens leave open."""
        ...


class Judgement(Protocol):
    """A rubric's verdict on one rollout."""

    @property
    def reward(self) -> float: ...

    @property
    def breakdown(self) -> Mapping[str, float]: ...

    @property
    def reason(self) -> str: ...

    @property
    def turns(self) -> Sequence[float]: ...

    @property
    def weights(self) -> Mapping[str, float]: ...

    @property
    def failed(self) -> bool: ...


class Judge(Protocol):
    """Never raises: a reward that raised is a judgement with `failed` set."""

    async def judge(self, transcript: Transcript) -> Judgement: ...


class GroupJudge(Protocol):
    """Never raises: a reward that raised is a judgement with `failed` set of each rollout."""

    async def judge(self, transcripts: Sequence[Transcript]) -> Sequence[Judgement]:
        """Return what is added to the reward of each rollout of one problem."""
        ...


class PolicyTrainer(Protocol):
    """The trainer as the RL loop sees it."""

    async def rl_step(self, inputs: StepInputs) -> TrainedStep: ...

    async def token_rewards(self, inputs: StepInputs) -> Values: ...


class PolicyVersion(Protocol):
    """Where the counter of published weights is read."""

    @property
    def version(self) -> int: ...


class PublishedWeights(PolicyVersion, Protocol):
    """The policy as the servers serve it: the one owner of its version."""

    def changing(self) -> AbstractAsyncContextManager[None]:
        """While the trainer's weights are not those of the present version."""
        ...

    async def publish_next(self) -> PublishReport:
        """Put the trainer's weights on the servers as the next version; while they are `changing`.
        Raises EngineError."""
        ...


class ValueTrainer(Protocol):
    """The critic as the RL loop sees it."""

    async def values(self, inputs: StepInputs) -> Values: ...

    async def critic_step(self, inputs: StepInputs) -> dict[str, float]: ...
