"""A rubric: several weighted rewards make one training reward, with its breakdown kept.

Exactly one term is the *outcome*: the domain verifier's own verdict from 0 to 1. It is reported
free of the other terms. Where problems have several sources, each may have terms of its own.
How a rollout ended comes first:

    completed            -> every term is asked, all at once; those `only_right` then, if the
                            outcome is 1
    truncated            -> outcome 0, the other terms are asked, but for those `only_right`
    a `veto` gave 0      -> the reward is 0, whatever the other terms say, and in training at most
                            the least of the group; the outcome stays what it is

A rollout that ended otherwise is not judged: what it earns is in
`engines/rollout/drivers/driver.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from engines.types import VETOED, Problem, Reward, Status, Transcript, Verdict
from infra.errors import InputError, OutOfReach
from infra.processes.part_process import PartFailed
from rewards.verdicts import NoVerdict, verdict_by

_ROUNDING = 1e-6
"""how far an outcome may lie outside 0 to 1, as sums of short floats do; it counts as the bound"""


@dataclass(frozen=True, slots=True)
class Term:
    """One weighted reward, e.g. `Term("math", 1.0, True, Math())`."""

    name: str
    weight: float
    outcome: bool
    reward: Reward
    sources: tuple[str, ...] = ()
    """the sources whose problems it judges; empty: all"""
    thinking: bool | None = None
    """whether it judges only rollouts that are asked to think, or only the others; None: all"""
    only_right: bool = False
    """whether it counts only where the outcome is 1"""
    veto: bool = False
    """whether a score of 0 or less leaves the rollout nothing of the other terms either"""

    def judges_source(self, source: object) -> bool:
        return not self.sources or source in self.sources

    def judges(self, problem: Problem) -> bool:
        asks = self.thinking is None or problem.thinking is self.thinking
        return asks and self.judges_source(problem.metadata.get("source"))


@dataclass(frozen=True, slots=True)
class RubricJudgement:
    """What a rubric says of a rollout.

    Example: reward=0.9, breakdown={"outcome": 1.0, "length": -0.1, "length/excess": 12.0}
    """

    reward: float
    breakdown: dict[str, float] = field(default_factory=dict)
    reason: str = ""
    turns: list[float] = field(default_factory=list)
    """the part of `reward` that each assistant turn earned; empty: no reward said"""
    weights: dict[str, float] = field(default_factory=dict)
    """of the terms, by their names in `breakdown`; 0: it does not judge the problem"""
    failed: bool = False
    """a reward raised or gave no usable number: the sample is recorded, not trained on"""


class Rubric:
    """Training reward = sum of weight x score."""

    def __init__(self, terms: Sequence[Term]) -> None:
        sources = {source: None for term in terms for source in term.sources}
        for source in sources or [None]:
            _check([term for term in terms if term.judges_source(source)])
        self._terms = tuple(terms)

    async def judge(self, transcript: Transcript) -> RubricJudgement:
        """Never raises for a reward's fault: the judgement then says `failed` and why. Raises
        OutOfReach."""
        status, reason = transcript.status, transcript.reason
        terms = [term for term in self._terms if term.judges(transcript.problem)]
        is_cut = status is Status.TRUNCATED
        always = [t for t in terms if not (t.only_right or (is_cut and t.outcome))]
        given: dict[str, Verdict] = {}
        fault = await _take_verdicts(always, transcript, given)
        if any(term.outcome and _is_right(given.get(term.name)) for term in terms):
            of_right = [term for term in terms if term.only_right]
            fault = fault or await _take_verdicts(of_right, transcript, given)
        else:
            terms = [term for term in terms if not term.only_right]
        if fault:
            return RubricJudgement(0.0, reason=fault, failed=True)
        return replace(_combined(terms, given, reason), weights=self._weights(transcript.problem))

    def _weights(self, problem: Problem) -> dict[str, float]:
        """Return the weights of all terms; 0 for those that do not judge the problem."""
        return {_key(term): term.weight * term.judges(problem) for term in self._terms}


def _check(terms: Sequence[Term]) -> None:
    """Raises InputError for terms that cannot judge one problem together."""
    names = [term.name for term in terms]
    outcomes = [term.name for term in terms if term.outcome]
    if len(outcomes) != 1:
        raise InputError(
            f"a rubric needs exactly one term with `outcome: true`, not {len(outcomes)} "
            f"({', '.join(outcomes) or 'none'} of {', '.join(names) or 'no terms'})."
        )
    if len(set(names)) < len(names):
        raise InputError(f"a rubric names a reward twice: {', '.join(names)}.")


def _is_right(verdict: Verdict | None) -> bool:
    return verdict is not None and verdict.score >= 1 - _ROUNDING


def _combined(terms: Sequence[Term], given: dict[str, Verdict], reason: str) -> RubricJudgement:
    total, breakdown, reasons = 0.0, dict[str, float](), [reason]
    for term in terms:
        verdict = given.get(term.name, Verdict(0.0, reason="ran out of budget"))
        score = min(1.0, max(0.0, verdict.score)) if term.outcome else verdict.score
        total += term.weight * score
        breakdown[_key(term)] = score
        breakdown |= {f"{term.name}/{part}": v for part, v in verdict.parts.items()}
        reasons.append(verdict.reason)
    vetoes = [t.name for t in terms if t.veto and breakdown[t.name] <= 0]
    if vetoes:
        reasons.append(f"vetoed by {' and '.join(vetoes)}")
        said = "; ".join(filter(None, reasons))
        return RubricJudgement(0.0, breakdown | {VETOED: 1.0}, said)
    parts = [
        [term.weight * t for t in given[term.name].turns] for term in terms if term.name in given
    ]
    turns = [sum(of_turn, 0.0) for of_turn in zip(*filter(None, parts), strict=True)]
    return RubricJudgement(total, breakdown, "; ".join(filter(None, reasons)), turns)


def _key(term: Term) -> str:
    return "outcome" if term.outcome else term.name


async def _take_verdicts(
    terms: Sequence[Term], transcript: Transcript, given: dict[str, Verdict]
) -> str:
    """Ask all at once, and put what they say into `given`; return what is wrong, empty for nothing.
    Raises OutOfReach."""
    if len(terms) == 1:  # the usual case, without a task for it
        verdicts = [await _ask(terms[0], transcript)]
    else:
        verdicts = await asyncio.gather(*(_ask(term, transcript) for term in terms))
    for term, verdict in zip(terms, verdicts, strict=True):
        fault = verdict_fault(term, verdict)
        if isinstance(verdict, Verdict):
            fault = fault or turns_fault(verdict, transcript)
            given[term.name] = verdict
        if fault:
            return f"reward {term.name!r} {fault}"
    return ""


async def _ask(term: Term, transcript: Transcript) -> Verdict | Exception:
    try:
        return await verdict_by(term.reward, transcript)
    except OutOfReach:  # no verdict, and the fault of no answer
        raise
    except Exception as error:  # of a user's code: it fails this sample only
        return error


def verdict_fault(term: Term, verdict: Verdict | Exception) -> str:
    """Return what makes this no verdict, in words; empty if it is one."""
    if isinstance(verdict, PartFailed | NoVerdict):
        return str(verdict)
    if isinstance(verdict, InputError):
        return f"cannot judge: {verdict}"
    if isinstance(verdict, Exception):
        return f"raised {type(verdict).__name__}: {verdict}"
    if term.outcome and not -_ROUNDING <= verdict.score <= 1 + _ROUNDING:
        return f"scored {verdict.score}: an outcome must be between 0 and 1"
    return ""


def turns_fault(verdict: Verdict, transcript: Transcript) -> str:
    """Return what is wrong with its turns, in words; empty if nothing is."""
    count = sum(message.role == "assistant" for message in transcript.messages)
    if len(verdict.turns) in (0, count):
        return ""
    return f"says what {len(verdict.turns)} turns earned, of a rollout with {count}"
