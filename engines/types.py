"""What flows between curricula, engines, rewards and losses.

A *problem* is one prompt of a curriculum. A *rollout* is one attempt at it; it yields one or more
training *samples* that share its id and its reward. The rollouts of one problem form a *group*.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, cast, runtime_checkable

from engines.weight_versions import WeightVersions

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from engines.algorithms.spec import Keep
    from infra.json_text import ParameterKind

Tokens: TypeAlias = "NDArray[np.int32]"
TokenIds: TypeAlias = "Sequence[int] | Tokens"
Experts: TypeAlias = "NDArray[np.uint8 | np.int16]"
"""[tokens, layers x experts of a token] that an engine chose, each number plus 1; 0: not known"""
Kept: TypeAlias = "NDArray[np.int32]"
"""what truncation kept at each sampled token's place, end to end: `~` of this token, other ids"""
Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
EQUAL_WITHIN = 1e-9  # rewards that differ by no more are equal: sums are rounded
VETOED, DISAGREEMENT = "vetoed", "disagreement"
"""in a breakdown: 1 where a `veto` failed; under `NAME/`, standard deviation of votes or models"""
Split: TypeAlias = Literal["sft", "rl", "distill", "heldout"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call as the model wrote it; some templates name its result by its `id`, most by order."""

    name: str
    arguments: dict[str, Json]
    id: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation, e.g. `Message("user", "12+30")`."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    reasoning: str | None = None
    """the text between the think tags; None: the turn has none"""
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class Tool:
    """A function the model may call; `parameters` maps a name to its JSON type, or to any."""

    name: str
    description: str
    parameters: Mapping[str, ParameterKind]
    required: tuple[str, ...] = ()
    schema: Mapping[str, Json] | None = None
    """the function's own JSON schema, which templates get as it is; None: the other fields"""

    @staticmethod
    def of_function(function: Mapping[str, Any]) -> Tool:
        """One with a `name`, a `description` and its `parameters` as a JSON schema."""
        from infra.json_text import parameters_of  # estimators need nothing of `infra`

        kinds, required = parameters_of(function.get("parameters"))
        described = str(function.get("description") or "")
        return Tool(str(function["name"]), described, kinds, required, function)


@dataclass(frozen=True, slots=True)
class Problem:
    """One prompt of a curriculum with what its verifier needs.

    `id` is stable across runs and unique within a curriculum, e.g. `reasoning/rl/add/17`.
    `thinking`: whether a thought is asked for; None leaves it to the template (`chat.mode`).
    """

    id: str
    domain: str
    messages: tuple[Message, ...]
    reference: Json = None
    tools: tuple[Tool, ...] = ()
    thinking: bool | None = None
    metadata: Mapping[str, Json] = field(default_factory=dict)
    row: str = field(default="", compare=False, repr=False)
    """where it was read, e.g. `prompts.jsonl:6`, for messages about it; no part of the problem"""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A solved conversation for supervised training: problem messages, then the answer's turns."""

    problem: Problem
    turns: tuple[Message, ...]


class Status(StrEnum):
    """How a rollout ended."""

    COMPLETED = "completed"
    """the model ended its turn by itself"""
    TRUNCATED = "truncated"
    """a token or turn budget ran out"""
    MALFORMED = "malformed"
    """a tool call broke the protocol; the episode ended there with reward 0"""
    ABORTED = "aborted"
    """generation was interrupted; never trained on"""
    FAILED = "failed"
    """the reward or the environment raised; `reason` says what; never trained on"""


TRAINABLE = frozenset({Status.COMPLETED, Status.TRUNCATED, Status.MALFORMED})


@dataclass(slots=True, eq=False)
class Sample:
    """The training unit: one token sequence with what each token is worth.

    All per-token arrays have `len(tokens)` entries; positions outside `loss_mask` (prompt, tool
    output) hold logprob 0 and weight version -1. Equal samples are equal to the bit.
    """

    problem_id: str
    domain: str
    group_id: str
    rollout_id: str
    sample_index: int
    """position of its rollout in the group"""
    tokens: Tokens
    loss_mask: NDArray[np.bool_]
    logprobs: NDArray[np.float32]
    weight_versions: WeightVersions
    status: Status
    reward: float = 0.0
    """what training maximises: the rubric's weighted sum"""
    rewards: dict[str, float] = field(default_factory=dict)
    """the breakdown; `outcome` (0 to 1) is the domain verifier's own verdict, free of shaping"""
    reason: str = ""
    """reason of the status or reward, for a person who browses rollouts"""
    temperature: float | None = None
    """that it was sampled at; None: the algorithm's"""
    token_budget: int = 0
    """tokens its rollout was allowed to generate; 0: unknown"""
    branch: int = 0
    """position among the samples of its rollout"""
    metadata: dict[str, Json] = field(default_factory=dict)
    turn_rewards: list[float] = field(default_factory=list)
    """the part of `reward` that each of its turns earned; the rest, or all, is its last turn's"""
    reward_weights: dict[str, float] = field(default_factory=dict)
    """of the terms of the rubric that judged it, by their names in `rewards`"""
    experts: Experts | None = None
    kept: Kept | None = None

    @property
    def num_trained_tokens(self) -> int:
        return int(self.loss_mask.sum())

    @property
    def is_broken(self) -> bool:
        """Return whether it is worth no more than its group's least: it broke a protocol or a
        rule."""
        return self.status is Status.MALFORMED or VETOED in self.rewards

    @property
    def num_turns(self) -> int:
        """Stretches of tokens that the policy wrote."""
        mask = self.loss_mask
        return int(mask[:1].sum() + (mask[1:] & ~mask[:-1]).sum())

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens before the first that the policy wrote."""
        return int(self.loss_mask.argmax()) if self.num_trained_tokens else len(self.tokens)

    @property
    def files(self) -> dict[str, str]:
        """Return what its rollout's driver collected, by name; kept with the first sample alone."""
        return cast("dict[str, str]", self.metadata.get("files", {}))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sample):
            return NotImplemented
        names = [f.name for f in fields(self)]
        return all(_bits(getattr(self, name)) == _bits(getattr(other, name)) for name in names)

    __hash__ = None


def _bits(value: Any) -> Any:
    return value.tobytes() if hasattr(value, "tobytes") else value


@dataclass(slots=True)
class Group:
    """The rollouts of one problem, compared with each other."""

    problem: Problem
    samples: list[Sample]
    """of all rollouts, those of one rollout side by side"""
    ticket: int = 0
    """serial number of the problem in its stage"""

    @property
    def has_signal(self) -> bool:
        """Return whether rewards differ, a broken one being at most the least: else none can
        teach."""
        kept = [s for s in self.samples if s.status in TRAINABLE]
        others = [s.reward for s in kept if not s.is_broken]
        return bool(others) and max(others) - min(s.reward for s in kept) > EQUAL_WITHIN


def one_per_rollout(samples: Sequence[Sample]) -> list[Sample]:
    """The first sample of each rollout: it tells how the rollout ended and what it earned."""
    return [s for s in samples if s.branch == 0]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample one turn, of all tokens or within `keep`; a `seed` repeats it in any batch."""

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    keep: Keep | None = None
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None
    is_last: bool = False
    """no later turn follows this one: its answer need not stay in the engine's cache"""
    route: str = ""
    """turns of one route begin alike, so they go to one server; empty: nothing is known of it"""
    experts_from: int = 0
    """place in the prompt from which on an engine may say its experts"""


Finish: TypeAlias = Literal["stop", "length", "abort"]
"""why a turn ended; abort: the engine was interrupted"""


@dataclass(frozen=True, slots=True, eq=False)
class Generation:
    """One turn from the engine: the ids as produced, including the stop token if there was one."""

    token_ids: Tokens
    logprobs: NDArray[np.float32]
    weight_versions: WeightVersions
    finish: Finish
    experts: Experts | None = None
    """of the prompt's tokens from `Sampling.experts_from` on, and of these but the last"""
    kept: Kept | None = None


@dataclass(frozen=True, slots=True)
class AssistantTurn:
    """What the model wrote, parsed. `error` is the reason when it broke the format."""

    text: str
    content: str
    reasoning: str | None
    tool_calls: tuple[ToolCall, ...]
    error: str = ""

    def message(self) -> Message:
        return Message("assistant", self.content, self.reasoning, self.tool_calls)


@dataclass(frozen=True, slots=True)
class Transcript:
    """A finished rollout as rewards see it: the problem, every turn after it, and how it ended."""

    problem: Problem
    messages: tuple[Message, ...]
    """assistant and tool turns in order; the last assistant turn is the answer"""
    status: Status
    num_tokens: int
    reason: str = ""
    raw: str = ""
    """the whole response as decoded with special tokens"""
    files: Mapping[str, str] = field(default_factory=dict)
    """what the driver collected, by name: text files that an agent wrote"""

    @property
    def answer(self) -> str:
        last = self.messages[-1] if self.messages else None
        return last.content if last is not None and last.role == "assistant" else ""

    @property
    def tool_turns(self) -> int:
        return sum(m.role == "tool" for m in self.messages)


@dataclass(frozen=True, slots=True)
class Rollout:
    """One generation attempt: what can be trained on, and what was judged."""

    samples: tuple[Sample, ...]
    """at least one; all have its id, status and reward, and share its weight in every mean"""
    transcript: Transcript

    @property
    def id(self) -> str:
        return self.samples[0].rollout_id

    @property
    def status(self) -> Status:
        return self.samples[0].status

    @property
    def rewards(self) -> Mapping[str, float]:
        return self.samples[0].rewards

    @property
    def num_trained_tokens(self) -> int:
        return sum(s.num_trained_tokens for s in self.samples)

    @property
    def weight_versions(self) -> frozenset[int]:
        """The versions that wrote tokens of it."""
        return frozenset[int]().union(*(s.weight_versions.sampled for s in self.samples))


@dataclass(frozen=True, slots=True)
class Step:
    """An environment's reaction to an assistant turn: tool messages, and whether it is over."""

    messages: tuple[Message, ...] = ()
    done: bool = False


class Episode(Protocol):
    """One live rollout of an environment."""

    async def step(self, turn: AssistantTurn) -> Step:
        """React to the model's turn. Raises only for faults of the environment itself."""
        ...

    async def close(self) -> None: ...


class Environment(Protocol):
    """What a multi-turn rollout acts on. A single-turn problem is an environment with no tools."""

    async def start(self, problem: Problem) -> Episode: ...


class Curriculum(Protocol):
    """Where problems come from. Splits are disjoint by construction: no problem is in two."""

    def problems(self, split: Split, count: int, seed: int, start: int = 0) -> Sequence[Problem]:
        """`count` problems of a split from position `start` of its endless order under `seed`."""
        ...

    def demonstrations(self, count: int, seed: int) -> Sequence[Demonstration]:
        """Solved problems of the `sft` split, by the curriculum's own demonstrator."""
        ...

    def environment(self) -> Environment | None:
        """The environment of its problems; None when one turn is the whole rollout."""
        ...


@runtime_checkable
class RowCurriculum(Curriculum, Protocol):
    """One whose problems are rows of a user's own files; they are read when first needed."""

    @property
    def left_out(self) -> Iterable[str]:
        """Sentences on the rows that are no problems."""
        ...

    def examples(self, count: int, seed: int) -> Sequence[Demonstration]:
        """At most `count` solved problems of any split, to look at; none where rows show none."""
        ...


@dataclass(frozen=True, slots=True)
class Verdict:
    """A reward's judgement: its score, its named parts, and why."""

    score: float
    parts: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""
    turns: Sequence[float] = ()
    """the part of `score` that each assistant turn earned; the rest, or all, is the last turn's"""


class Reward(Protocol):
    """Judges a finished rollout. May raise: the sample is then recorded as failed."""

    async def __call__(self, transcript: Transcript) -> Verdict: ...


class ProtocolBreak(Exception):
    """`Episode.step` raises it where the model broke a tool's protocol; its text is the reason."""
