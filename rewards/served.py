"""Rewards that ask a served model: a judge by a prompt, a reward model by its output."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from string import Formatter
from typing import Any, Literal, Protocol, Self

from pydantic import Field, FiniteFloat, NonNegativeInt, model_validator

from engines.types import Json, Message, Problem, Reward, Transcript, Verdict
from infra.config import Config, Count
from infra.json_text import value_text

JUDGE, REWARD_MODEL = "judge", "reward-model"


class AsksModel(Protocol):
    """Each method waits for a place at the model's servers, and raises if they do not answer within
    `timeout_s` from then on, or if what is asked is longer than they take."""

    async def answer(
        self,
        problem: Problem,
        *,
        max_new_tokens: int,
        temperature: float,
        seed: int,
        timeout_s: float,
    ) -> str:
        """What the model says next, without its thought."""
        ...

    async def choice_logprobs(
        self, problem: Problem, choices: Sequence[str], *, timeout_s: float
    ) -> list[float]:
        """Of each choice as the beginning of its answer."""
        ...

    async def outputs(
        self, problem: Problem, turns: Sequence[Message], *, timeout_s: float
    ) -> list[float]:
        """Of a reward model's head, for a conversation that ends with the assistant's turn."""
        ...


PLACES = ("question", "answer", "conversation", "reference")


def prompt_fault(template: str) -> str:
    """Why a template cannot be filled in, in words; empty if it can."""
    try:
        names = _names(template)
    except ValueError as error:
        return f"{error}; write {{{{ and }}}} for braces that are no place"
    for name in names:
        first, dot, _ = name.partition(".")
        if first not in PLACES or (dot and first != "reference"):
            allowed = ", ".join(f"{{{place}}}" for place in PLACES)
            return f"there is no {{{name}}}; allowed: {allowed}, {{reference.NAME}}"
    if not {"answer", "conversation"} & set(names):
        return "it shows nothing of what is judged; write {answer} or {conversation} into it"
    return ""


def reference_places(template: str) -> tuple[str, ...]:
    """The fields of a reference that a template shows; `""` for the whole of it."""
    places = [name.partition(".") for name in _names(template)]
    return tuple(dict.fromkeys(key for first, _, key in places if first == "reference"))


def filled(template: str, transcript: Transcript) -> str:
    """Raises ValueError for a field that the problem's reference does not have."""
    parts: list[str] = []
    for text, name, _, _ in Formatter().parse(template):
        parts.append(text)
        if name is not None:
            parts.append(_value(name, transcript))
    return "".join(parts)


def _names(template: str) -> list[str]:
    found: list[str] = []
    for _, name, form, conversion in Formatter().parse(template):
        if name is None:
            continue
        if form or conversion:
            raise ValueError(f"{{{name}}} takes no format")
        found.append(name)
    return found


def _value(name: str, transcript: Transcript) -> str:
    problem = transcript.problem
    match name.partition("."):
        case "question", _, _:
            return _shown(problem.messages)
        case "answer", _, _:
            return transcript.answer
        case "conversation", _, _:
            return _shown(transcript.messages, with_roles=True)
        case _, "", _:
            return _text(problem.reference)
        case _, _, key:
            held = problem.reference
            if not isinstance(held, dict) or key not in held:
                raise ValueError(f"problem {problem.id}: its reference has no {key!r}")
            return _text(held[key])


def _shown(messages: Sequence[Message], *, with_roles: bool = False) -> str:
    if len(messages) == 1 and not with_roles:
        return messages[0].content
    return "\n".join(f"{m.role}: {_said(m)}" for m in messages)


def _said(message: Message) -> str:
    calls = [f"{c.name}({json.dumps(c.arguments, sort_keys=True)})" for c in message.tool_calls]
    return " ".join(filter(None, [message.content, *calls]))


def _text(value: Json) -> str:
    is_plain = isinstance(value, str | int | float)
    return value_text(value) if is_plain else json.dumps(value, ensure_ascii=False)


class JudgeSettings(Config):
    """At least one of `pattern` and `choices` says how a score is read."""

    prompt: str
    """what the judge is asked, with {question}, {answer}, {conversation}, {reference} or
    {reference.NAME} in it; braces that are no place are doubled"""
    system: str = ""
    """its system message; empty: none"""
    thinking: bool | None = None
    """whether it is asked for a thought; left out: off, unless its chat template always opens one.
    A score is never read from a thought"""
    pattern: str | None = None
    """a regular expression; its last match in the answer counts, or its group 1 if it has one:
    a number on `scale`, or, with `choices`, one of them"""
    scale: tuple[FiniteFloat, FiniteFloat] = (0.0, 1.0)
    """the numbers that mean the scores 0 and 1; a number outside is no score"""
    choices: dict[str, FiniteFloat] = Field(default_factory=dict)
    """scores by answer, e.g. {"Yes": 1, "No": 0}. Without `pattern` nothing is generated: each
    choice counts by the probability that the judge gives it"""
    unreadable: FiniteFloat | None = None
    """score of an answer without one; none: the sample is failed"""
    max_new_tokens: Count = 64
    """of the judge's answer, its thought included"""
    temperature: float = Field(default=0.0, ge=0)

    @property
    def reference_keys(self) -> tuple[str, ...]:
        """The fields of a reference that its prompt shows; `""` for the whole of it."""
        return reference_places(self.prompt)

    @model_validator(mode="after")
    def _can_be_asked(self) -> Self:
        if fault := prompt_fault(self.prompt):
            raise ValueError(f"prompt: {fault}")
        if self.pattern is None and not self.choices:
            raise ValueError("says not how a score is read; write `pattern` or `choices`")
        if len(self.choices) == 1:
            raise ValueError("choices: one choice tells nothing apart; write two or more")
        if any(not choice.strip() for choice in self.choices):
            raise ValueError("choices: an empty text is no answer; leave it out")
        if self.scale[0] == self.scale[1]:
            raise ValueError("scale: its two numbers are equal; write those of scores 0 and 1")
        if self.pattern is not None:
            _check_pattern(self.pattern)
        return self


def _check_pattern(pattern: str) -> None:
    import regex

    try:
        groups = regex.compile(pattern).groups
    except regex.error as error:
        raise ValueError(f"pattern: is no regular expression: {error}") from None
    if groups > 1:
        raise ValueError(f"pattern: has {groups} groups; one says what counts")


_SEARCH_S = 1.0
"""what the search for a pattern may take"""
_SHOWN = 300
"""characters of the judge's answer that are kept with the sample"""


class Judge:
    """Raises where the judge does not answer, or where its answer holds no score."""

    def __init__(self, settings: JudgeSettings, model: AsksModel, timeout_s: float) -> None:
        self._settings, self._model, self._timeout_s = settings, model, timeout_s

    async def __call__(self, transcript: Transcript) -> Verdict:
        asked = question(self._settings, transcript)
        if self._settings.pattern is None:
            return await self._by_choice(asked)
        said = await self._model.answer(
            asked,
            max_new_tokens=self._settings.max_new_tokens,
            temperature=self._settings.temperature,
            seed=_seed(transcript),
            timeout_s=self._timeout_s,
        )
        return _read(self._settings, said)

    async def _by_choice(self, asked: Problem) -> Verdict:
        choices = self._settings.choices
        logprobs = await self._model.choice_logprobs(
            asked, list(choices), timeout_s=self._timeout_s
        )
        most = max(logprobs)
        weights = [math.exp(logprob - most) for logprob in logprobs]
        shares = {name: w / sum(weights) for name, w in zip(choices, weights, strict=True)}
        score = sum(share * choices[name] for name, share in shares.items())
        return Verdict(score, shares, f"the judge prefers {max(shares, key=shares.__getitem__)!r}")


def question(settings: JudgeSettings, transcript: Transcript) -> Problem:
    """What the judge is asked. Raises ValueError."""
    system = (Message("system", settings.system),) if settings.system else ()
    asked = Message("user", filled(settings.prompt, transcript))
    judged = transcript.problem
    return Problem(judged.id, judged.domain, (*system, asked), thinking=settings.thinking)


def _read(settings: JudgeSettings, said: str) -> Verdict:
    reason = f"the judge: {said.strip()[:_SHOWN]!r}"
    score = _score(settings, said)
    if score is None:
        score = settings.unreadable
        if score is None:
            raise ValueError(f"its answer holds no score: {said.strip()[:_SHOWN]!r}")
    return Verdict(score, reason=reason)


def _score(settings: JudgeSettings, said: str) -> float | None:
    """None where nothing is found, or nothing that is on the scale or among the choices."""
    import regex

    assert settings.pattern is not None
    found = list(regex.finditer(settings.pattern, said, timeout=_SEARCH_S))
    if not found:
        return None
    text = (found[-1].group(found[-1].re.groups) or "").strip()
    if settings.choices:
        return settings.choices.get(text)
    try:
        number = float(text)
    except ValueError:
        return None
    low, high = settings.scale
    score = (number - low) / (high - low)
    return score if 0 <= score <= 1 else None


def _seed(transcript: Transcript) -> int:
    """The same for the same rollout, whenever it is judged."""
    return zlib.crc32(f"{transcript.problem.id}\n{transcript.raw}".encode()) & 0x7FFF_FFFF


class RewardModelSettings(Config):
    """Options of the reward `reward-model`."""

    output: NonNegativeInt = 0
    """which of the head's outputs counts, from 0 on"""
    scale: Literal["raw", "sigmoid", "softmax"] = "sigmoid"
    """raw: the number itself; sigmoid: between 0 and 1; softmax: its share among all outputs. An
    outcome is between 0 and 1"""


class RewardModel:
    """Raises where the model does not answer."""

    def __init__(self, settings: RewardModelSettings, model: AsksModel, timeout_s: float) -> None:
        self._settings, self._model, self._timeout_s = settings, model, timeout_s

    async def __call__(self, transcript: Transcript) -> Verdict:
        problem = replace(transcript.problem, thinking=None)
        turns = said(transcript)
        outputs = await self._model.outputs(problem, turns, timeout_s=self._timeout_s)
        at = self._settings.output
        if at >= len(outputs):
            raise ValueError(f"`output` is {at}, and the model's head has {len(outputs)} outputs")
        raw = outputs[at]
        return Verdict(_scaled(self._settings, outputs), {"raw": raw})


def said(transcript: Transcript) -> Sequence[Message]:
    """The turns without thoughts, up to the assistant's last: a budget may have run out after a
    tool's answer.

    Raises ValueError.
    """
    turns = list(transcript.messages)
    while turns and turns[-1].role != "assistant":
        turns.pop()
    if not turns:
        raise ValueError("the assistant said nothing that could be judged")
    return [replace(turn, reasoning=None) for turn in turns]


def _scaled(settings: RewardModelSettings, outputs: Sequence[float]) -> float:
    raw = outputs[settings.output]
    match settings.scale:
        case "raw":
            return raw
        case "sigmoid":
            return 0.5 * (1 + math.tanh(raw / 2))
        case "softmax":
            most = max(outputs)
            return math.exp(raw - most) / sum(math.exp(x - most) for x in outputs)


def build_served(
    name: str, options: Mapping[str, Any], model: AsksModel, timeout_s: float
) -> Reward:
    """Raises pydantic's ValidationError."""

    if name == JUDGE:
        return Judge(JudgeSettings.model_validate(options), model, timeout_s)
    return RewardModel(RewardModelSettings.model_validate(options), model, timeout_s)
