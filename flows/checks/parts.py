"""Tries a recipe's parts as the stages will use them.

Problems are drawn, a demonstration is rendered with its loss mask, an environment takes a turn,
rewards judge.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engines.chat import Chat
from engines.draws import draw_demonstrations, draw_problems
from engines.rollout.drivers.built_in import BUILT_IN as DRIVERS
from engines.types import (
    AssistantTurn,
    Curriculum,
    Demonstration,
    Environment,
    Message,
    Problem,
    ProtocolBreak,
    Split,
    Status,
    Step,
    Transcript,
)
from flows.checks.bounded_steps import IMPORT_SECONDS, Attempts, Observer
from flows.checks.overlap import overlaps
from flows.checks.trial_request import (
    CustomPart,
    Findings,
    PlacedCurriculum,
    PlacedDomain,
    TrialRequest,
)
from infra.errors import InputError
from rewards.rubric import Rubric, Term, verdict_fault
from tasks.base.spec import BaseSettings
from tasks.domain import Domain
from tasks.model_folder.location import local_folder

_SHOWN = 8
"""demonstrations that are rendered and judged"""


def try_parts(request: TrialRequest, observer: Observer) -> Findings:
    """Never raises for a fault of a part."""
    with asyncio.Runner() as runner:
        attempts = Attempts(observer, runner)
        for placed in request.domains:
            _try_domain(placed, request, attempts)
        for changed in request.changed:
            _try_changed(changed, attempts)
        for part in request.custom:
            _try_custom(part, attempts)
        return attempts.findings()


@dataclass(frozen=True, slots=True)
class _Live:
    """A domain's parts, built."""

    where: str
    domain: Domain
    curriculum: Curriculum
    environment: Environment | None
    terms: Sequence[Term]

    @property
    def name(self) -> str:
        return self.domain.curriculum.name


def _try_domain(placed: PlacedDomain, request: TrialRequest, attempts: Attempts) -> None:
    live = _build(placed, attempts)
    if live is None:
        return
    _try_problems(live, placed.counts, request.seed, attempts)
    count = min(_SHOWN, placed.counts["sft"])
    fine, shown = attempts.call(
        f"{live.where}.curriculum",
        f"{live.name}.demonstrations({count}, seed={request.seed})",
        lambda: draw_demonstrations(live.curriculum, count, request.seed),
    )
    if not fine:
        return
    chat = _render(live, shown[:count], request.base, attempts)
    _try_environment(live, shown[0], attempts)
    if chat is not None:
        _try_driver(live, shown[0], chat, attempts)
    _judge(live, shown[:count], attempts)


# Build


def _build(placed: PlacedDomain, attempts: Attempts) -> _Live | None:
    """Every part by itself, so that each that is wrong is named; None if one is."""
    from curricula.registry import build as build_curriculum

    where, domain = placed.where, placed.domain
    before = len(attempts.problems)
    terms = _build_rewards(f"{where}.rewards", domain, attempts)
    named, at = domain.curriculum, f"{where}.curriculum"
    curriculum: Any = None
    if _imported(at, "curriculum", named.name, attempts):
        _, curriculum = attempts.call(
            at, named.name, lambda: build_curriculum(named.name, named.options)
        )
    if curriculum is None:
        return None
    environment = None
    if domain.max_turns > 1:
        fine, environment = attempts.call(at, f"{named.name}.environment()", curriculum.environment)
        if fine and environment is None:
            attempts.problems.append(
                f"{where}.max_turns: is {domain.max_turns}, but its curriculum has no environment"
            )
    if len(attempts.problems) > before:
        return None
    return _Live(where, domain, curriculum, environment, terms)


def _try_changed(placed: PlacedCurriculum, attempts: Attempts) -> None:
    from curricula.registry import build

    named = placed.curriculum
    attempts.call(placed.where, named.name, lambda: build(named.name, named.options))


def _build_rewards(where: str, domain: Domain, attempts: Attempts) -> Sequence[Term]:
    from rewards.registry import build

    terms: list[Term] = []
    for index, t in enumerate(domain.rewards):
        at = f"{where}.{index}"
        if not _imported(at, "reward", t.name, attempts):
            continue
        fine, reward = attempts.call(at, t.name, lambda t=t: build(t.name, t.options))
        if fine:
            terms.append(Term(t.name, t.weight, t.outcome, reward))
    if len(terms) == len(domain.rewards):
        attempts.call(where, "the rubric", lambda: Rubric(terms))
    return terms


def _imported(where: str, kind: str, name: str, attempts: Attempts) -> bool:
    """Import the module of a dotted path; what it prints by that is a caution."""
    module = name.partition(":")[0]
    if ":" not in name:
        return True
    attempts.observer.printed()
    fine, _ = attempts.call(
        where, f"importing {module}", lambda: _import(kind, name), IMPORT_SECONDS
    )
    if text := attempts.observer.printed().strip():
        attempts.cautions.append(
            f"hooks: {module}.py prints while it is imported ({text[:60]!r}), and would print"
            " in every job; remove the print"
        )
    return fine


def _import(kind: str, name: str) -> None:
    """As the part is found later; an error of the module itself keeps its own line."""
    from infra.hooks import resolve

    module = name.partition(":")[0]
    if importlib.util.find_spec(module.partition(".")[0]) is not None:
        importlib.import_module(module)
    resolve(kind, name, {})


# Problems


def _try_problems(live: _Live, counts: dict[Split, int], seed: int, attempts: Attempts) -> None:
    at, drawn = f"{live.where}.curriculum", {}
    for split, count in counts.items():
        first = min(2, count)
        call = f"{live.name}.problems({split!r}, {first}, seed={seed})"
        fine, two = attempts.call(
            at, call, lambda s=split, n=first: draw_problems(live.curriculum, s, n, seed)
        )
        if not fine:  # the other splits would say the same
            return
        call = f"{live.name}.problems({split!r}, {count}, seed={seed})"
        fine, problems = attempts.call(
            at, call, lambda s=split, n=count: draw_problems(live.curriculum, s, n, seed)
        )
        if not fine:
            return
        drawn[split] = problems
        if two != problems[:first]:
            attempts.problems.append(
                f"{at}: {call}: gives different problems at the same positions when fewer are"
                " requested; position i must depend on split, seed and i alone"
            )
            return
        call = f"{live.name}.problems({split!r}, 1, seed={seed}, start={first - 1})"
        attempts.call(
            at,
            call,
            lambda s=split, p=problems, n=first: _check_position(live, s, p, n, seed),
        )
    attempts.problems += [f"{at}: {live.name}: {line}" for line in overlaps(drawn)]


def _check_position(
    live: _Live, split: Split, problems: Sequence[Problem], first: int, seed: int
) -> None:
    """A resumed stage draws from a position on."""
    again = draw_problems(live.curriculum, split, 1, seed, first - 1)[0]
    if again != problems[first - 1]:
        raise InputError(
            f"{live.name}: split {split}: the problem at position {first - 1} is"
            f" {problems[first - 1].id!r} when drawn from the start, and {again.id!r} with"
            f" start={first - 1}; a resumed stage would train on other problems. Let position i"
            " depend on split, seed and i alone"
        )


# Demonstrations


def _render(
    live: _Live, shown: Sequence[Demonstration], base: BaseSettings, attempts: Attempts
) -> Chat | None:
    """-> the chat format, if there is one that they can be rendered with."""
    at = f"{live.where}.curriculum"
    fine, chat = attempts.call("base", "its chat template", lambda: _chat(base, shown))
    if not fine or chat is None:
        return None
    what = f"a demonstration of {live.name}"
    fine, _ = attempts.call(at, what, lambda: _check_rendered(live, shown, chat))
    return chat if fine else None


def _check_rendered(live: _Live, shown: Sequence[Demonstration], chat: Chat) -> None:
    for demonstration in shown:
        problem = demonstration.problem
        try:
            _, mask = chat.training_ids(problem, demonstration.turns)
        except InputError as error:
            raise InputError(f"{live.name}.demonstrations: {error}") from error
        if not any(mask):
            raise InputError(
                f"{live.name}.demonstrations: nothing of problem {problem.id} would be trained on:"
                " its loss mask is empty"
            )


def _chat(base: BaseSettings, shown: Sequence[Demonstration]) -> Chat | None:
    """The base's own template; None for a base that is not on this machine or is wrong, which is
    said elsewhere."""
    if base.random is not None:
        from tasks.base.random_model import write_chat_files

        with tempfile.TemporaryDirectory(prefix="tributary-check-") as folder:
            write_chat_files(Path(folder), base.random, shown)
            return Chat.load(Path(folder))
    folder = local_folder(str(base.folder))
    if folder is None:
        return None
    try:
        return Chat.load(folder)
    except InputError:
        return None


def _try_environment(live: _Live, shown: Demonstration, attempts: Attempts) -> None:
    """The demonstration's own turns, played until the environment says that it is over."""
    if live.environment is None:
        return
    environment, at = live.environment, f"{live.where}.curriculum"
    name = f"the environment of {live.name}"
    limit = live.domain.timeout_s
    fine, episode = attempts.wait(
        at, f"{name}: start()", lambda: environment.start(shown.problem), limit
    )
    if not fine:
        return
    for turn in (t for t in shown.turns if t.role == "assistant"):
        said = AssistantTurn(turn.content, turn.content, turn.reasoning, turn.tool_calls)
        fine, step = attempts.wait(
            at, f"{name}: step()", lambda said=said: _step(episode, said), limit
        )
        if not fine or step.done or not step.messages:
            break
    attempts.wait(at, f"{name}: close()", episode.close, limit)


async def _step(episode: Any, said: AssistantTurn) -> Step:
    try:
        step: Any = await episode.step(said)
    except ProtocolBreak:  # a demonstrator may err
        return Step(done=True)
    messages: Any = getattr(step, "messages", ())
    if not isinstance(step, Step) or not all(isinstance(m, Message) for m in messages):
        name, given = type(episode).__name__, type(step).__name__
        raise InputError(f"step() of {name} gave {given}, not engines.types.Step with Messages")
    return step


def _try_driver(live: _Live, shown: Demonstration, chat: Chat, attempts: Attempts) -> None:
    """A driver of the user's own, on a demonstration."""
    from flows.checks.try_driver import try_driver

    named, at = live.domain.driver, f"{live.where}.driver"
    if named.name in DRIVERS or not _imported(at, "driver", named.name, attempts):
        return
    attempts.wait(
        at,
        f"{named.name}: run()",
        lambda: try_driver(live.domain, live.curriculum, live.environment, chat, shown),
        2 * named.timeout_s,
    )


# Rewards


def _judge(live: _Live, shown: Sequence[Demonstration], attempts: Attempts) -> None:
    """Each reward on every demonstration; the outcome on an empty answer, too."""
    for index, term in enumerate(live.terms):
        at, limit = f"{live.where}.rewards.{index}", live.domain.rewards[index].timeout_s
        scores: list[float] = []
        for demonstration in shown:
            score = _score(at, term, _transcript(demonstration), attempts, limit)
            if score is None:  # said once
                break
            scores.append(score)
        if not term.outcome or len(scores) < len(shown):
            continue
        nothing = _transcript(replace(shown[0], turns=(Message("assistant", ""),)))
        empty = _score(at, term, nothing, attempts, limit)
        if empty and {*scores, empty} == {empty}:
            attempts.problems.append(
                f"{at}: {term.name} gives {empty:g} to every demonstration and to an empty answer"
                " as well: it tells nothing apart, so nothing can be learned from it"
            )
        if empty is not None and not any(scores):
            attempts.cautions.append(
                f"{at}: {term.name} gives 0 to all of {len(scores)} demonstrations: the cold start"
                " would teach answers that it calls wrong"
            )


def _score(
    at: str, term: Term, transcript: Transcript, attempts: Attempts, limit: float
) -> float | None:
    problem = transcript.problem.id
    what = f"{term.name} on {'a demonstration' if transcript.answer else 'an empty answer'}"
    fine, verdict = attempts.wait(
        at, f"{what} of {problem}", lambda: _asked(term, transcript), limit
    )
    if not fine:
        return None
    if fault := verdict_fault(term, verdict):
        attempts.problems.append(f"{at}: {term.name} {fault}")
        return None
    return float(verdict.score)


async def _asked(term: Term, transcript: Transcript) -> Any:
    """A reward of the user's own may be a plain function."""
    verdict: Any = term.reward(transcript)
    return await verdict if inspect.isawaitable(verdict) else verdict


def _transcript(shown: Demonstration) -> Transcript:
    said = shown.turns[-1].content
    return Transcript(shown.problem, shown.turns, Status.COMPLETED, len(said), raw=said)


# Algorithms


def _try_custom(part: CustomPart, attempts: Attempts) -> None:
    from flows.command.hooks import hook_faults

    if not _imported(part.where, part.kind, part.path, attempts):
        return
    fine, faults = attempts.call(
        part.where,
        part.path,
        lambda: hook_faults(part.kind, part.path, part.options, part.needs),
        IMPORT_SECONDS,
    )
    for check, saw in faults if fine else ():
        attempts.problems.append(f"{part.where}: {part.path} breaks the contract: {check}: {saw}")
