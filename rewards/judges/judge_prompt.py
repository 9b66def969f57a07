"""How a judge is asked, and how its score is read."""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import zlib
from collections.abc import Awaitable, Callable, Sequence
from string import Formatter
from typing import Any, Literal, Self

from pydantic import Field, FiniteFloat, model_validator

from engines.types import DISAGREEMENT, Json, Message, Problem, Transcript, Verdict
from infra.config import Config
from infra.data_files.rubric_criteria import read_rubric
from infra.errors import InputError, OutOfReach
from infra.json_text import value_text
from rewards.references import reference_fault
from rewards.text import spoken

RUBRIC = "rubric"
PLACES = ("question", "answer", "conversation", "reference", RUBRIC)
_OF_ROWS = ("reference", RUBRIC)
_PLACE = re.compile(rf"(?<!{{)\{{(?:{'|'.join(PLACES)})(?:\.\w+)?\}}(?!}})")
_NUMBER = re.compile(r"(?:(?<![\w.,)])[+-])?\d+(?:[.,]\d+)*")
SHOWN = 300
"""characters of the judge's answer that are kept with the sample"""
_SEARCH_S = 1.0
"""what the search for a pattern may take"""


def prompt_fault(template: str) -> str:
    """Why a judge's template cannot be filled in, in words; empty if it can."""
    if fault := places_fault(template, PLACES):
        return fault
    if not {"answer", "conversation"} & set(_names(template)):
        return "it shows nothing of what is judged; write {answer} or {conversation} into it"
    return ""


def places_fault(template: str, places: Sequence[str]) -> str:
    """Why a template does not have these places alone; empty if it has."""
    try:
        names = _names(template)
    except ValueError as error:
        return f"{error}; write {{{{ and }}}} for braces that are no place"
    for name in names:
        first, dot, _ = name.partition(".")
        if first not in places or (dot and first != "reference"):
            allowed = ", ".join(f"{{{place}}}" for place in places)
            return f"there is no {{{name}}}; allowed: {allowed}, {{reference.NAME}}"
    return ""


def reference_places(template: str) -> tuple[str, ...]:
    """The fields of a reference that a template shows; `""` for the whole of it."""
    places = [name.partition(".") for name in _names(template)]
    shown = [RUBRIC if first == RUBRIC else key for first, _, key in places if first in _OF_ROWS]
    return tuple(dict.fromkeys(shown))


def shown_of_rows(template: str) -> list[str]:
    """The places that a problem's row fills. Example: ["reference.answer", "rubric"]"""
    return [name for name in _names(template) if name.partition(".")[0] in _OF_ROWS]


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
        case "rubric", _, _:
            return _rubric(problem)
        case _, "", _:
            return _text(_without_rubric(problem.reference))
        case _, _, key:
            held = problem.reference
            if not isinstance(held, dict) or key not in held:
                raise ValueError(f"problem {problem.id}: its reference has no {key!r}")
            return _text(held[key])


def _rubric(problem: Problem) -> str:
    """Return a text as it is; of a list one line for each item. Raises ValueError."""
    held: Any = problem.reference
    given: Any = held.get(RUBRIC) if isinstance(held, dict) else None
    if not given:
        raise ValueError(f"problem {problem.id}: it has no rubric")
    try:
        rubric = read_rubric(given)
    except InputError as error:
        raise ValueError(f"problem {problem.id}: {error}") from None
    return rubric if isinstance(rubric, str) else "\n".join(each.line for each in rubric)


def _without_rubric(reference: Json) -> Json:
    if not isinstance(reference, dict):
        return reference
    return {name: value for name, value in reference.items() if name != RUBRIC}


def _has(reference: Json, template: str) -> bool:
    """Return whether a reference holds all that a template shows of it."""
    return not any(
        reference_fault(reference if key else _without_rubric(reference), [key])
        for key in reference_places(template)
    )


def _shown(messages: Sequence[Message], *, with_roles: bool = False) -> str:
    if len(messages) == 1 and not with_roles:
        return messages[0].content
    return "\n".join(f"{m.role}: {_said(m)}" for m in messages)


def _said(message: Message) -> str:
    calls = [f"{c.name}({json.dumps(c.arguments, sort_keys=True)})" for c in message.tool_calls]
    return " ".join(part for part in (message.content, *calls) if part)


def _text(value: Json) -> str:
    is_plain = isinstance(value, str | int | float)
    return value_text(value) if is_plain else json.dumps(value, ensure_ascii=False)


class JudgeQuestion(Config):
    """Holds what judges of every kind have in common."""

    prompt: str
    """what the judge is asked, with {question}, {answer}, {conversation}, {reference} or
    {reference.NAME} in it, or {rubric}, the row's own; braces that are no place are doubled"""
    reference_prompt: str = ""
    """asked in place of `prompt` where a problem has all that this shows of its reference, or the
    rubric; empty: `prompt` is asked of each"""
    system: str = ""
    """its system message, as it stands; empty: none"""
    pattern: str | None = None
    """a regular expression; its last match in the answer counts, or its group 1 if it has one:
    a number on `scale`, or, with `choices`, one of them"""
    scale: tuple[FiniteFloat, FiniteFloat] = (0.0, 1.0)
    """the numbers that mean the scores 0 and 1; a number outside is no score"""
    choices: dict[str, FiniteFloat] = Field(default_factory=dict)
    """scores by answer, e.g. {"Yes": 1, "No": 0}"""
    unreadable: FiniteFloat | None = None
    """score of an answer without one; none: the sample is failed"""
    temperature: float = Field(default=0.0, ge=0)
    votes: int = Field(default=1, ge=1, le=99)
    """how often it is asked about one rollout; more than half have to give a score"""
    vote_score: Literal["mean", "median"] = "mean"
    """what the votes' scores become"""

    @property
    def reference_keys(self) -> tuple[str, ...]:
        """The fields of a reference that its prompt shows; `""` for the whole of it."""
        return reference_places(self.prompt)

    @model_validator(mode="after")
    def _can_be_asked(self) -> Self:
        if fault := prompt_fault(self.prompt):
            raise ValueError(f"prompt: {fault}")
        if place := _PLACE.search(self.system):
            raise ValueError(f"system: is sent as it stands; move {place[0]} into `prompt`")
        if self.reference_prompt:
            fault = prompt_fault(self.reference_prompt)
            if not fault and not reference_places(self.reference_prompt):
                fault = "shows no {reference} and no {rubric}, so every row would be asked it"
            if not fault and {*reference_places(self.reference_prompt)} <= {*self.reference_keys}:
                fault = "shows nothing that `prompt` does not, so `prompt` would never be asked"
            if fault:
                raise ValueError(f"reference_prompt: {fault}")
        if len(self.choices) == 1:
            raise ValueError("choices: one choice tells nothing apart; write two or more")
        if any(not choice.strip() for choice in self.choices):
            raise ValueError("choices: an empty text is no answer; leave it out")
        if self.scale[0] == self.scale[1]:
            raise ValueError("scale: its two numbers are equal; write those of scores 0 and 1")
        if self.pattern is not None:
            _check_pattern(self.pattern)
        if self.choices and self.scale != (0.0, 1.0):
            raise ValueError("scale: `choices` are scores already; leave one of the two out")
        if self.votes == 1 and self.vote_score != "mean":
            raise ValueError(f"vote_score: one vote has no {self.vote_score}; raise `votes`")
        if self.votes > 1 and not self.temperature:
            raise ValueError(
                f"votes: at temperature 0 all {self.votes} would say the same; write a"
                " `temperature` above 0"
            )
        return self


def _check_pattern(pattern: str) -> None:
    import regex

    try:
        groups = regex.compile(pattern).groups
    except regex.error as error:
        raise ValueError(f"pattern: is no regular expression: {error}") from None
    if groups > 1:
        raise ValueError(f"pattern: has {groups} groups; one says what counts")


def takes_reference_prompt(settings: JudgeQuestion, problem: Problem) -> bool:
    """Return whether a problem has what the `reference_prompt` shows, if there is one."""
    other = settings.reference_prompt
    return bool(other) and _has(problem.reference, other)


def asked_messages(settings: JudgeQuestion, transcript: Transcript) -> tuple[Message, ...]:
    """Return what the judge is asked. Raises ValueError."""
    system = (Message("system", settings.system),) if settings.system else ()
    by_reference = takes_reference_prompt(settings, transcript.problem)
    template = settings.reference_prompt if by_reference else settings.prompt
    return (*system, Message("user", filled(template, spoken(transcript))))


def read_verdict(settings: JudgeQuestion, said: str, *, is_whole: bool = True) -> Verdict:
    """Read the verdict by the pattern, or the choice that the answer is; one that was cut off has
    no score, as its last number may be half of one, or in a thought. Raises ValueError for an
    answer without a score, unless `unreadable` says what that is."""
    reason = f"the judge: {said.strip()[:SHOWN]!r}"
    text = said.strip() if settings.pattern is None else _matched(settings.pattern, said)
    score = None if text is None or not is_whole else _score(settings, text)
    if score is None:
        score = settings.unreadable
        if score is None:
            cut = "was cut off, or its thought does not end: raise `max_new_tokens`"
            why = "holds no score" if is_whole else cut
            raise ValueError(f"its answer {why}: {said.strip()[:SHOWN]!r}")
    return Verdict(score, reason=reason)


def _matched(pattern: str, said: str) -> str | None:
    r"""Return what the last match says; a number whole where it matches a part of one, as `\d+`
    does with `7.5`."""
    import regex

    found = list(regex.finditer(pattern, said, timeout=_SEARCH_S))
    if not found:
        return None
    matched = found[-1].group(found[-1].re.groups) or ""
    if not matched.strip().isdecimal():
        return matched.strip()
    end = found[-1].start(found[-1].re.groups) + len(matched.rstrip())
    whole = (number for number in _NUMBER.finditer(said) if number.end() >= end)
    return next(whole).group()


def _score(settings: JudgeQuestion, text: str) -> float | None:
    """None for what is not among the choices, or no number on the scale."""
    if settings.choices:
        written = [name for name in settings.choices if _bare(name) == _bare(text)]
        name = written[0] if len(written) == 1 else text
        return settings.choices.get(name)
    try:
        return on_scale(settings, float(text))
    except ValueError:
        return None


def _bare(choice: str) -> str:
    """Return it without what may stand around it, and without capitals: `**Yes.**` -> `yes`."""
    return choice.strip(" \n.!*_`\"'").casefold()


def on_scale(settings: JudgeQuestion, number: float) -> float | None:
    """The score that a number means; None outside the scale."""
    low, high = settings.scale
    score = (number - low) / (high - low)
    return score if 0 <= score <= 1 else None


def seed_of(transcript: Transcript, vote: int) -> int:
    """Return the same seed for the same vote on the same rollout, whenever it is judged."""
    about = f"{transcript.problem.id}\n{transcript.raw}".encode()
    return (zlib.crc32(about) + vote) & 0x7FFF_FFFF


async def voted(settings: JudgeQuestion, ask: Callable[[int], Awaitable[Verdict]]) -> Verdict:
    """One verdict by as many votes as the settings want; `ask` takes a vote's number. Where they
    are several, its parts say how many gave a score, and the standard deviation of these.

    Raises what a single vote raises, OutOfReach, and ValueError where half of several or more
    failed.
    Example: scores 0, 0.5 and 1, by the mean -> 0.5, {"votes": 3, "disagreement": 0.408}.
    """
    if settings.votes == 1:
        return await ask(0)
    asked = (ask(number) for number in range(settings.votes))
    found = await asyncio.gather(*asked, return_exceptions=True)
    votes = [vote for vote in found if isinstance(vote, Verdict)]
    failed = [vote for vote in found if not isinstance(vote, Verdict)]
    if lost := next((vote for vote in failed if isinstance(vote, OutOfReach)), None):
        raise lost
    if 2 * len(failed) >= settings.votes:
        raise ValueError(f"{len(failed)} of {settings.votes} votes failed; the first: {failed[0]}")
    scores = [vote.score for vote in votes]
    by_median = settings.vote_score == "median"
    score = statistics.median(scores) if by_median else statistics.fmean(scores)
    typical = min(votes, key=lambda vote: abs(vote.score - score))
    parts = {"votes": float(len(votes)), DISAGREEMENT: statistics.pstdev(scores)}
    return Verdict(score, parts, typical.reason)
