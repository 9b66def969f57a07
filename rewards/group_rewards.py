"""Rewards that see all rollouts of one problem together, and say one verdict of each.

    def reward(transcripts: Sequence[Transcript]) -> list[float]     # or Verdicts; `async` or not

They are asked once all rollouts of a group are over, of those that ended well or were cut off. What
goes wrong fails the whole group: no verdict of it is a score.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from engines.types import Transcript, Verdict
from infra.errors import InputError
from infra.hooks import check_options, construct, resolve
from infra.processes.part_process import PartFailed
from rewards.rubric import RubricJudgement
from rewards.verdicts import NoVerdict, shown, verdict_of

GROUP_PARAMETER = "transcripts"
"""by which a reward of groups is told from one of single rollouts"""
_FORM = (
    f"Write `def reward({GROUP_PARAMETER}) -> list[float]`, or a class with `__call__(self,"
    f" {GROUP_PARAMETER})`: one number or Verdict for each rollout, in their order"
)


class GroupReward(Protocol):
    """Judges all rollouts of a problem. May raise: all of them are then recorded as failed."""

    async def __call__(self, transcripts: Sequence[Transcript]) -> Sequence[Verdict]: ...


def is_group_reward(part: Callable[..., Any]) -> bool:
    """Return whether a function, or what a class makes, is called with a group."""
    called: Any = part
    if inspect.isclass(part):
        called = inspect.getattr_static(part, "__call__", part)
    try:
        return GROUP_PARAMETER in inspect.signature(called).parameters
    except (TypeError, ValueError):
        return False


def build_group_reward(name: str, options: Mapping[str, Any] | None = None) -> GroupReward:
    """Return a user's reward of groups, made with its options. Raises InputError for anything
    else."""
    factory, options = resolve("reward", name, {}), options or {}
    if not is_group_reward(factory):
        raise InputError(f"reward {name!r} is said to judge a `group`, and takes none. {_FORM}")
    if inspect.isclass(factory):
        return OwnGroupReward(construct("reward", name, factory, options))
    check_options("reward", name, factory, options)
    return OwnGroupReward(functools.partial(factory, **options))


class OwnGroupReward:
    """A user's reward, so that its verdicts have plain numbers only."""

    def __init__(self, reward: Callable[[Sequence[Transcript]], Any]) -> None:
        self._reward = reward

    async def __call__(self, transcripts: Sequence[Transcript]) -> Sequence[Verdict]:
        """Raises NoVerdict, and what the reward raises."""
        found = self._reward(transcripts)
        returned: Any = await found if inspect.isawaitable(found) else found
        if isinstance(returned, str | bytes | Mapping) or not isinstance(returned, Iterable):
            raise NoVerdict(f"returned {shown(returned)}: a reward of a group returns a list")
        verdicts = [verdict_of(each) for each in cast("Iterable[object]", returned)]
        if len(verdicts) != len(transcripts):
            raise NoVerdict(f"returned {len(verdicts)} verdicts of {len(transcripts)} rollouts")
        if any(verdict.turns for verdict in verdicts):
            raise NoVerdict("returned a Verdict with `turns`: of a group whole rollouts are judged")
        return verdicts


@dataclass(frozen=True, slots=True)
class GroupTerm:
    """One weighted reward of groups, e.g. `GroupTerm("own:diversity", 0.2, reward)`."""

    name: str
    weight: float
    reward: GroupReward
    sources: tuple[str, ...] = ()
    """the sources whose problems it judges; empty: all"""


class GroupRubric:
    """Adds to each rollout's reward the sum of weight x score."""

    def __init__(self, terms: Sequence[GroupTerm]) -> None:
        self._terms = tuple(terms)

    async def judge(self, transcripts: Sequence[Transcript]) -> Sequence[RubricJudgement]:
        """Return what is added to each rollout of one problem. Never raises for a reward's fault:
        every judgement then says `failed` and why."""
        source = transcripts[0].problem.metadata.get("source")
        terms = [term for term in self._terms if not term.sources or source in term.sources]
        found = await asyncio.gather(*(_ask(term, transcripts) for term in terms))
        for term, verdicts in zip(terms, found, strict=True):
            if isinstance(verdicts, Exception):
                why = f"reward {term.name!r} {_fault(verdicts)}, asked about the whole group"
                return [RubricJudgement(0.0, reason=why, failed=True) for _ in transcripts]
        said = cast("list[Sequence[Verdict]]", found)
        return [_combined(terms, [each[at] for each in said]) for at in range(len(transcripts))]


def _combined(terms: Sequence[GroupTerm], verdicts: Sequence[Verdict]) -> RubricJudgement:
    total, breakdown = 0.0, dict[str, float]()
    for term, verdict in zip(terms, verdicts, strict=True):
        total += term.weight * verdict.score
        breakdown[term.name] = verdict.score
        breakdown |= {f"{term.name}/{part}": v for part, v in verdict.parts.items()}
    reasons = "; ".join(verdict.reason for verdict in verdicts if verdict.reason)
    weights = {term.name: term.weight for term in terms}
    return RubricJudgement(total, breakdown, reasons, weights=weights)


async def _ask(term: GroupTerm, transcripts: Sequence[Transcript]) -> Sequence[Verdict] | Exception:
    try:
        return await term.reward(transcripts)
    except Exception as error:  # of a user's code: it fails this group only
        return error


def _fault(error: Exception) -> str:
    if isinstance(error, PartFailed | NoVerdict):
        return str(error)
    return f"raised {type(error).__name__}: {error}"
