"""Has rewards judge demonstrations and an empty answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from engines.types import Demonstration, Message, RowCurriculum, Status, Transcript, Verdict
from flows.checks.trial.bounded_steps import Attempts
from flows.checks.trial.live_parts import LiveParts
from rewards.built_in import BUILT_IN
from rewards.rubric import Term, turns_fault, verdict_fault
from rewards.served.build import JUDGE
from rewards.served.judge import question
from rewards.served.judge_settings import JudgeSettings
from rewards.verdicts import NoVerdict, verdict_by
from tasks.domain import RewardTerm


def try_rewards(live: LiveParts, shown: Sequence[Demonstration], attempts: Attempts) -> None:
    """Each reward on every demonstration; the outcome on an empty answer, too."""
    for index, term in enumerate(live.terms):
        at, limit = f"{live.where}.rewards.{index}", live.domain.rewards[index].timeout_s
        judged = [d for d in shown if term.judges(d.problem.metadata.get("source"))]
        if live.domain.rewards[index].served is not None:
            _try_question(at, live.domain.rewards[index], judged, attempts)
            continue
        scores: list[float] = []
        for demonstration in judged:
            verdict = _verdict(at, term, _transcript(demonstration), attempts, limit)
            if verdict is None:  # said once
                break
            scores.append(float(verdict.score))
            if len(verdict.turns) > 1 and live.blind_to_turns and term.name not in BUILT_IN:
                attempts.problems.append(
                    f"{at}: {term.name} says what each turn earned, and nothing looks at it:"
                    f" {', '.join(live.blind_to_turns)}. Choose the advantage `gigpo`, or a"
                    " function of your own with `needs: [turns]`; or return no `turns`"
                )
        if not term.outcome or not judged or len(scores) < len(judged):
            continue
        nothing = _transcript(replace(judged[0], turns=(Message("assistant", ""),)))
        verdict = _verdict(at, term, nothing, attempts, limit)
        empty = None if verdict is None else float(verdict.score)
        if empty and {*scores, empty} == {empty}:
            attempts.problems.append(
                f"{at}: {term.name} gives {empty:g} to every demonstration and to an empty answer"
                " as well: it tells nothing apart, so nothing can be learned from it"
            )
        if empty is not None and not any(scores):
            attempts.cautions.append(
                f"{at}: {term.name} gives 0 to all of {len(scores)} demonstrations: the cold start"
                " would teach answers that it calls wrong"
                if not isinstance(live.curriculum, RowCurriculum)
                else f"{at}: {term.name} gives 0 to all of {len(scores)} solutions that the rows"
                " show: it may look for a form that they do not have"
            )


def _try_question(
    at: str, named: RewardTerm, judged: Sequence[Demonstration], attempts: Attempts
) -> None:
    """What a judge would be asked of every demonstration: a problem may lack what its prompt
    names."""
    if named.name != JUDGE:
        return
    settings = JudgeSettings.model_validate(named.options)
    for demonstration in judged:
        asked = _transcript(demonstration)
        what = f"the prompt of {named.name} for {demonstration.problem.id}"
        fine, _ = attempts.call(at, what, lambda asked=asked: question(settings, asked))
        if not fine:  # said once
            break


def _verdict(
    at: str, term: Term, transcript: Transcript, attempts: Attempts, limit: float
) -> Verdict | None:
    problem = transcript.problem.id
    what = f"{term.name} on {'a demonstration' if transcript.answer else 'an empty answer'}"
    fine, verdict = attempts.wait(
        at, f"{what} of {problem}", lambda: _asked(term, transcript), limit
    )
    if not fine:
        return None
    if fault := verdict_fault(term, verdict) or turns_fault(verdict, transcript):
        attempts.problems.append(f"{at}: {term.name} {fault}")
        return None
    return verdict


async def _asked(term: Term, transcript: Transcript) -> Verdict | NoVerdict:
    try:
        return await verdict_by(term.reward, transcript)
    except NoVerdict as error:
        return error


def _transcript(shown: Demonstration) -> Transcript:
    said = shown.turns[-1].content
    return Transcript(shown.problem, shown.turns, Status.COMPLETED, len(said), raw=said)
