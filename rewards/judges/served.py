"""Rewards that ask a served model: a judge by a prompt, a reward model by its output."""

from __future__ import annotations

import asyncio
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Protocol, Self

from pydantic import NonNegativeFloat, NonNegativeInt, model_validator

from engines.types import DISAGREEMENT, Message, Problem, Reward, Transcript, Verdict
from infra.config import Config, Count
from rewards.judges.judge_prompt import (
    JudgeQuestion,
    asked_messages,
    read_verdict,
    seed_of,
    voted,
)
from rewards.text import spoken

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
    ) -> tuple[str, bool]:
        """Return what the model says next, without its thought, and whether that is all of it: of a
        turn that was cut off or is broken, a thought may be in it."""
        ...

    async def choice_logprobs(
        self, problem: Problem, choices: Sequence[str], *, timeout_s: float
    ) -> list[float]:
        """Return the logprob of each choice as the beginning of its answer."""
        ...

    async def outputs(
        self, problem: Problem, turns: Sequence[Message], *, timeout_s: float
    ) -> list[float]:
        """Return the outputs of a reward model's head, for a conversation that ends with the
        assistant's turn."""
        ...


class JudgeSettings(JudgeQuestion):
    """At least one of `pattern` and `choices` says how a score is read. Without `pattern` nothing
    is generated: each choice counts by the probability that the judge gives it."""

    thinking: bool | None = None
    """whether it is asked for a thought; left out: off, unless its chat template always opens one.
    A score is never read from a thought"""
    max_new_tokens: Count = 64
    """of the judge's answer, its thought included"""

    @model_validator(mode="after")
    def _says_how_it_is_read(self) -> Self:
        if self.pattern is None and not self.choices:
            raise ValueError("says not how a score is read; write `pattern` or `choices`")
        if self.votes > 1 and self.pattern is None:
            raise ValueError(
                "votes: `choices` without `pattern` weighs all of the judge's probabilities, which"
                " are the same each time; leave `votes` out, or write a `pattern`"
            )
        return self


class Judge:
    """Raises where the judge does not answer, or where its answer holds no score."""

    def __init__(self, settings: JudgeSettings, model: AsksModel, timeout_s: float) -> None:
        self._settings, self._model, self._timeout_s = settings, model, timeout_s

    async def __call__(self, transcript: Transcript) -> Verdict:
        asked = question(self._settings, transcript)
        if self._settings.pattern is None:
            return await self._by_choice(asked)

        async def vote(number: int) -> Verdict:
            said, is_whole = await self._model.answer(
                asked,
                max_new_tokens=self._settings.max_new_tokens,
                temperature=self._settings.temperature,
                seed=seed_of(transcript, number),
                timeout_s=self._timeout_s,
            )
            return read_verdict(self._settings, said, is_whole=is_whole)

        return await voted(self._settings, vote)

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
    """Return what the judge is asked. Raises ValueError."""
    judged = transcript.problem
    asked = asked_messages(settings, transcript)
    return Problem(judged.id, judged.domain, asked, thinking=settings.thinking)


class RewardModelSettings(Config):
    """Options of the reward `reward-model`."""

    output: NonNegativeInt = 0
    """which of the head's outputs counts, from 0 on"""
    scale: Literal["raw", "sigmoid", "softmax"] = "sigmoid"
    """raw: the number itself; sigmoid: between 0 and 1; softmax: its share among all outputs. An
    outcome is between 0 and 1"""
    combine: Literal["least", "mean"] = "least"
    """what the scores of several models become (arXiv 2310.02743): the least of them, or their mean
    less `disagreement_penalty` times their disagreement"""
    disagreement_penalty: NonNegativeFloat = 0.0
    """how much a standard deviation of the models' scores takes off their mean"""

    @model_validator(mode="after")
    def _penalty_is_of_a_mean(self) -> Self:
        if self.disagreement_penalty and self.combine != "mean":
            raise ValueError(
                "disagreement_penalty: is taken off a mean, and the least score counts; write"
                " `combine: mean` beside it, or leave it out"
            )
        return self


class RewardModel:
    """One model, or several whose scores become one. Raises where any of them does not answer."""

    def __init__(
        self, settings: RewardModelSettings, models: Sequence[AsksModel], timeout_s: float
    ) -> None:
        self._settings, self._models, self._timeout_s = settings, models, timeout_s

    async def __call__(self, transcript: Transcript) -> Verdict:
        given = tuple(replace(each, reasoning=None) for each in transcript.problem.messages)
        problem = replace(transcript.problem, messages=given, thinking=None)
        turns = said(spoken(transcript))
        asked = (model.outputs(problem, turns, timeout_s=self._timeout_s) for model in self._models)
        outputs = await asyncio.gather(*asked)
        scores = [_scaled(self._settings, of_model) for of_model in outputs]
        if len(scores) == 1:
            return Verdict(scores[0], {"raw": outputs[0][self._settings.output]})
        return combined(self._settings, scores)


def combined(settings: RewardModelSettings, scores: Sequence[float]) -> Verdict:
    """The verdict of several models by their scores, which are its parts by the models' numbers.

    Example: 0.2, 0.5 and 0.8, by the mean less 1 x their disagreement of 0.245 -> 0.255.
    """
    apart = statistics.pstdev(scores)
    by_model = {str(number): score for number, score in enumerate(scores, 1)}
    score = min(scores)
    if settings.combine == "mean":
        score = statistics.fmean(scores) - settings.disagreement_penalty * apart
    return Verdict(score, {**by_model, DISAGREEMENT: apart})


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
    """Raises ValueError for a head without that output."""
    at = settings.output
    if at >= len(outputs):
        raise ValueError(f"`output` is {at}, and the model's head has {len(outputs)} outputs")
    raw = outputs[at]
    match settings.scale:
        case "raw":
            return raw
        case "sigmoid":
            return 0.5 * (1 + math.tanh(raw / 2))
        case "softmax":
            most = max(outputs)
            return math.exp(raw - most) / sum(math.exp(x - most) for x in outputs)


def build_served(
    name: str, options: Mapping[str, Any], models: Sequence[AsksModel], timeout_s: float
) -> Reward:
    """Raises pydantic's ValidationError."""
    if name == JUDGE:
        return Judge(JudgeSettings.model_validate(options), models[0], timeout_s)
    return RewardModel(RewardModelSettings.model_validate(options), models, timeout_s)
