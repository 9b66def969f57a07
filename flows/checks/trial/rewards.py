"""Has rewards judge demonstrations and an empty answer."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

from engines.types import (
    Demonstration,
    Message,
    RowCurriculum,
    Status,
    Transcript,
    Verdict,
)
from flows.checks.trial.live_parts import LiveParts
from flows.checks.trial.request import Attempts
from rewards.built_in_rewards import BUILT_IN
from rewards.exact import BY_LETTER, COMPARING, written_as_floats
from rewards.group_rewards import GroupReward, GroupRubric, GroupTerm
from rewards.judges.external_judge import ExternalJudgeSettings
from rewards.judges.judge_prompt import (
    JudgeQuestion,
    asked_messages,
    shown_of_rows,
    takes_reference_prompt,
)
from rewards.judges.served import JudgeSettings
from rewards.references import ANSWER, answer_texts
from rewards.rubric import Term, turns_fault, verdict_fault
from rewards.text import boxed
from rewards.verdicts import NoVerdict, verdict_by
from tasks.domain import RewardTerm

_SHOWN = 120
"""characters of an example"""
_SLOW_S = 20.0
"""seconds of one verdict"""
_LONG = 400
"""characters that no answer repeats letter by letter"""


def try_rewards(live: LiveParts, shown: Sequence[Demonstration], attempts: Attempts) -> None:
    """Try each reward on every demonstration; the outcome on an empty answer, too."""
    for index, term in enumerate(live.terms):
        named = live.domain.rewards[index]
        at, limit = f"{live.where}.rewards.{index}", named.timeout_s
        judged = [d for d in shown if term.judges_source(d.problem.metadata.get("source"))]
        attempts.cautions += _never_judging(at, term, live, shown)
        if (together := live.groups.get(index)) is not None:
            _try_group(at, term.name, together, judged, attempts, limit)
            continue
        if named.asks_model:
            _try_question(at, named, judged, attempts)
            continue
        if named.name in COMPARING and isinstance(live.curriculum, RowCurriculum):
            texts = [*answer_texts(d.problem.reference for d in judged)]
            attempts.cautions += _never_said(at, term.name, texts, len(judged))
            if named.name in BY_LETTER and (said := written_as_floats(texts)):
                attempts.cautions.append(f"{at}: {term.name} compares {said}")
        verdicts: list[Verdict] = []
        for demonstration in judged:
            began = time.monotonic()
            verdict = _verdict(at, term, _transcript(demonstration), attempts, limit)
            if verdict is None:  # said once
                break
            verdicts.append(verdict)
            if len(verdict.turns) > 1 and live.blind_to_turns and named.name not in BUILT_IN:
                attempts.problems.append(
                    f"{at}: {term.name} says what each turn earned, and nothing looks at it:"
                    f" {', '.join(live.blind_to_turns)}. Choose the advantage `gigpo`, or a"
                    " function of your own with `needs: [turns]`; or return no `turns`"
                )
            if (took := time.monotonic() - began) > _SLOW_S:
                attempts.cautions.append(
                    f"{at}: {term.name} took {took:.1f} s for one verdict, and was tried on no"
                    " further answer. A step waits for its slowest verdict, and code that does not"
                    " `await` meanwhile stops all rollouts: run it with `asyncio.to_thread`"
                )
                break
        if not judged or len(verdicts) < len(judged):
            continue
        if term.veto and all(verdict.score <= 0 for verdict in verdicts):
            attempts.problems.append(
                f"{at}.veto: {term.name} gives 0 or less to every demonstration, so none would earn"
                " anything; leave `veto` out, or give 1 where the rule holds"
            )
        if not term.outcome:
            continue
        nothing = _transcript(replace(judged[0], turns=(Message("assistant", ""),)))
        empty = _verdict(at, term, nothing, attempts, limit)
        scores = {verdict.score for verdict in verdicts}
        if empty and empty.score and scores == {empty.score}:
            attempts.problems.append(
                f"{at}: {term.name} gives {empty.score:g} to every demonstration and to an empty"
                " answer as well: it tells nothing apart, so nothing can be learned from it"
            )
        if empty and scores == {0.0}:
            asked = [_in_a_box(each) for each in judged if _is_asked_for_a_box(each)]
            in_box = (_verdict(at, term, _transcript(each), attempts, limit) for each in asked)
            if len(asked) == len(judged) and any(v and v.score for v in in_box):
                continue
            why = _why(named.name, live, judged[0], verdicts[0].reason)
            attempts.cautions.append(f"{at}: {term.name} gives 0 to all of {len(verdicts)} {why}")


def _never_judging(
    at: str, term: Term, live: LiveParts, shown: Sequence[Demonstration]
) -> Iterator[str]:
    modes = {demonstration.problem.thinking for demonstration in shown}
    if live.without_thinking:
        modes.add(False)
    if term.thinking is not None and term.thinking not in modes:
        yield (
            f"{at}.thinking: {term.name} judges nothing, as no problem of {live.domain.name} is"
            f" asked with thinking {'on' if term.thinking else 'off'}; leave the reward out, or"
            " write `nothink_share` for an `rl`"
        )


def _try_group(
    at: str,
    name: str,
    reward: GroupReward,
    shown: Sequence[Demonstration],
    attempts: Attempts,
    limit: float,
) -> None:
    """Three answers to the first problem, in both orders: a demonstration, no answer, another
    problem's."""
    if not shown:
        return
    turns = (shown[0].turns, (Message("assistant", ""),), shown[-1].turns)
    group = [_transcript(replace(shown[0], turns=each)) for each in turns]
    scores: list[list[float]] = []
    for asked in (group, group[::-1]):
        given, copies = list(asked), copy.deepcopy(asked)
        what = f"{name} on {len(asked)} answers to {shown[0].problem.id}"
        call = partial(GroupRubric([GroupTerm(name, 1.0, reward)]).judge, asked)
        fine, judgements = attempts.wait(at, what, call, limit)
        if not fine:
            return
        if judgements[0].failed:
            attempts.problems.append(f"{at}: {judgements[0].reason}")
            return
        if names := _changed_of_group(copies, given, asked):
            attempts.problems.append(f"{at}: {name} {_said_of_changed(names)}")
            return
        scores.append([judgement.reward for judgement in judgements])
    if scores[0] != scores[1][::-1]:
        attempts.cautions.append(
            f"{at}: {name} gives {scores[0]} to three answers, and {scores[1][::-1]} if they come"
            " in another order: a rollout's place in its group must earn it nothing"
        )


def _is_asked_for_a_box(shown: Demonstration) -> bool:
    """Return whether the prompt asks for a form that the row, which shows its reference alone, has
    not.
    """
    reference = shown.problem.reference
    answer = reference.get(ANSWER) if isinstance(reference, dict) else None
    is_asked = any("\\boxed" in message.content for message in shown.problem.messages)
    return is_asked and shown.turns[-1].content == str(answer)


def _in_a_box(shown: Demonstration) -> Demonstration:
    said = shown.turns[-1]
    return replace(shown, turns=(replace(said, content=f"\\boxed{{{said.content}}}"),))


def _never_said(at: str, name: str, texts: Sequence[str], count: int) -> Iterator[str]:
    """Where every reference of `count` holds a whole solution, which no answer repeats."""
    if not texts or len(texts) < count or not all(map(_is_solution, texts)):
        return
    pattern = '"#### (.+)"' if all("####" in text for text in texts) else "a pattern of it"
    yield (
        f"{at}: {name} compares answers with references that are whole solutions; one ends"
        f" with {texts[0][-_SHOWN:]!r}: no answer will be that. Set the source's"
        f" `reference_pattern` to {pattern}, so that only the result counts"
    )


def _is_solution(text: str) -> bool:
    return not boxed(text) and ("####" in text or "\n" in text.strip() or len(text) > _LONG)


def _why(name: str, live: LiveParts, shown: Demonstration, reason: str) -> str:
    """Return what a reward does not find in demonstrations, with the first as an example."""
    said, reference = shown.turns[-1].content, shown.problem.reference
    example = f"the first is {said[-_SHOWN:]!r}"
    if reference is not None:
        example += f", its reference {json.dumps(reference, ensure_ascii=False)[-_SHOWN:]}"
    example += f", and the reward says: {reason}" if reason else ""
    if not isinstance(live.curriculum, RowCurriculum):
        return (
            "demonstrations: the cold start would teach answers that it calls wrong. Of"
            f" {live.name}, {example}"
        )
    hint = ""
    if name == "math" and not boxed(said):
        hint += (
            ". `math` reads the answer from \\boxed{}: ask for that in the source's `instruction`,"
            " and show it in its solutions if a model is trained on them"
        )
    return (
        "solutions that the rows show: it may look for a form that they do not have;"
        f" {example}{hint}"
    )


def _try_question(
    at: str, named: RewardTerm, judged: Sequence[Demonstration], attempts: Attempts
) -> None:
    """What a judge would be asked of every demonstration: a problem may lack what its prompt
    names."""
    settings: JudgeQuestion
    match named.name:
        case "judge":
            settings = JudgeSettings.model_validate(named.options)
        case "external-judge":
            settings = ExternalJudgeSettings.model_validate(named.options)
        case _:
            return
    for demonstration in judged:
        asked = _transcript(demonstration)
        what = f"the prompt of {named.name} for {demonstration.problem.id}"
        fine, _ = attempts.call(at, what, lambda asked=asked: asked_messages(settings, asked))
        if not fine:  # said once
            return
    asked_so = [takes_reference_prompt(settings, each.problem) for each in judged]
    if settings.reference_prompt and judged and not any(asked_so):
        shows = " and ".join(f"{{{name}}}" for name in shown_of_rows(settings.reference_prompt))
        attempts.cautions.append(
            f"{at}.options.reference_prompt: none of {len(judged)} problems has {shows}, so each is"
            " asked `prompt`; if that is no slip, it may stay"
        )


def _verdict(
    at: str, term: Term, transcript: Transcript, attempts: Attempts, limit: float
) -> Verdict | None:
    problem, before = transcript.problem.id, copy.deepcopy(transcript)
    what = f"{term.name} on {'a demonstration' if transcript.answer else 'an empty answer'}"
    fine, verdict = attempts.wait(
        at, f"{what} of {problem}", lambda: _asked(term, transcript), limit
    )
    if not fine:
        return None
    if names := list(_changed_fields(before, transcript, "transcript")):
        attempts.problems.append(f"{at}: {term.name} {_said_of_changed(names)}")
        return None
    if fault := verdict_fault(term, verdict) or turns_fault(verdict, transcript):
        attempts.problems.append(f"{at}: {term.name} {fault}")
        return None
    return verdict


def _changed_fields(before: Any, after: Any, at: str) -> Iterator[str]:
    """Where a transcript is not what it was. Example: transcript.problem.reference"""
    for field in fields(before):
        one, other = getattr(before, field.name), getattr(after, field.name)
        if field.name == "problem":
            yield from _changed_fields(one, other, f"{at}.problem")
        elif one != other:
            yield f"{at}.{field.name}"


def _changed_of_group(
    copies: Sequence[Transcript], given: Sequence[Transcript], left: Sequence[Transcript]
) -> list[str]:
    """`copies` of what was `given`, made before, and the list that the reward `left`."""
    if list(map(id, given)) != list(map(id, left)):
        return ["transcripts"]
    pairs = zip(copies, given, strict=True)
    each = (name for pair in pairs for name in _changed_fields(*pair, "transcripts[i]"))
    return [*dict.fromkeys(each)]


def _said_of_changed(names: Sequence[str]) -> str:
    return (
        f"changes {' and '.join(names)}, which it may only read: whoever judges the rollout next"
        " would see what it left; work on a copy, e.g. `copy.deepcopy`"
    )


async def _asked(term: Term, transcript: Transcript) -> Verdict | NoVerdict:
    try:
        return await verdict_by(term.reward, transcript)
    except NoVerdict as error:
        return error


def _transcript(shown: Demonstration) -> Transcript:
    said = shown.turns[-1].content
    return Transcript(shown.problem, shown.turns, Status.COMPLETED, len(said), raw=said)
