"""Draws a curriculum's problems and renders demonstrations: enough, the same again, no split shares
any. Tries a domain's environment, driver and mode on a demonstration.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations, groupby, islice
from typing import Any

import numpy as np

from engines.chat import Chat
from engines.draws import draw_problems
from engines.rollout.drivers.driver import LiveDomain, build
from engines.rollout.protocols import DRIVERS
from engines.rollout.roller import Roller
from engines.types import (
    AssistantTurn,
    Demonstration,
    Generation,
    Message,
    Problem,
    ProtocolBreak,
    RowCurriculum,
    Sampling,
    Split,
    Status,
    Step,
    TokenIds,
    Transcript,
)
from engines.weight_versions import WeightVersions
from flows.checks.trial.live_parts import LiveParts
from flows.checks.trial.request import Attempts
from infra.errors import InputError
from infra.processes.leftovers import temporary_folder
from tasks.base.spec import BaseSettings
from tasks.model_folder.folder_report import template_text
from tasks.model_folder.model_files import local_folder

_SHOWN = 60
"""characters of a shared problem"""
_CONTEXT = 1 << 20


def overlaps(drawn: Mapping[Split, Sequence[Problem]]) -> Iterator[str]:
    """Yield a sentence for each two splits that share a problem or an id."""
    for (first, ours), (second, theirs) in combinations(drawn.items(), 2):
        known = {_content(problem): problem for problem in ours}
        shared = [problem for problem in theirs if _content(problem) in known]
        if shared:
            example = known[_content(shared[0])]
            text = repr(example.messages[-1].content)[:_SHOWN]
            yield (
                f"splits {first} and {second} share problems, {len(shared)} of {len(theirs)} drawn,"
                f" e.g. {example.id!r} and {shared[0].id!r}: {text}; let the content decide the"
                " split, not position or seed"
            )
            continue
        ids = {problem.id for problem in ours}
        clash = next((p.id for p in theirs if p.id in ids), None)
        if clash is not None:
            yield (
                f"splits {first} and {second} both have a problem with the id {clash!r}; put the"
                " split's name into the id"
            )


def _content(problem: Problem) -> str:
    """Return what makes two problems the same problem."""
    said = [[message.role, message.content] for message in problem.messages]
    return json.dumps([said, problem.reference], sort_keys=True)


def try_problems(
    live: LiveParts, counts: dict[Split, int], seed: int, attempts: Attempts
) -> list[Problem]:
    """Return the problems that were drawn; none where one of the splits cannot be drawn right."""
    at, drawn = f"{live.where}.curriculum", {}
    for split, count in counts.items():
        first = min(2, count)
        call = f"{live.name}.problems({split!r}, {first}, seed={seed})"
        fine, two = attempts.call(
            at, call, partial(draw_problems, live.curriculum, split, first, seed)
        )
        if not fine:  # the other splits would say the same
            return []
        call = f"{live.name}.problems({split!r}, {count}, seed={seed})"
        fine, problems = attempts.call(
            at, call, partial(draw_problems, live.curriculum, split, count, seed)
        )
        if not fine:
            return []
        drawn[split] = problems
        if two != problems[:first]:
            attempts.problems.append(
                f"{at}: {call}: gives different problems at the same positions when fewer are"
                " requested; position i must depend on split, seed and i alone"
            )
            return []
        call = f"{live.name}.problems({split!r}, 1, seed={seed}, start={first - 1})"
        attempts.call(
            at,
            call,
            partial(_check_position, live, split, problems, first, seed),
        )
    attempts.problems += [f"{at}: {live.name}: {line}" for line in overlaps(drawn)]
    return [problem for problems in drawn.values() for problem in problems]


def _check_position(
    live: LiveParts, split: Split, problems: Sequence[Problem], first: int, seed: int
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


_PROMPTS = 1000
"""of the user's rows that are written"""


def try_prompts(
    live: LiveParts,
    problems: Sequence[Problem],
    shown: Sequence[Demonstration],
    chat: Chat,
    attempts: Attempts,
) -> list[Demonstration]:
    """The demonstrations whose prompts the template writes: a run goes on without the user's rows
    that it does not write, and says so."""
    if not isinstance(live.curriculum, RowCurriculum):
        return list(shown)
    tried = problems[:_PROMPTS]
    faults = [(p, fault) for p in tried if (fault := _fault(p, chat))]
    if faults:
        first, fault = faults[0]
        attempts.cautions.append(
            f"{live.where}.curriculum: {len(faults)} of {len(tried)} prompts cannot be written with"
            f" {chat.template_file}; their rollouts fail, and a stage ends where more fail than"
            f" `bounds.max_failed_share`. The first is {first.row or first.id}: {fault}"
        )
    return [each for each in shown if not _fault(each.problem, chat)] or list(shown)


def _fault(problem: Problem, chat: Chat) -> str:
    """Why the prompt cannot be written; empty if it can."""
    try:
        chat.prompt_ids(chat.decided(problem))
    except Exception as error:  # what the user's row holds may fail anywhere in a template
        return str(error)
    return ""


def render(live: LiveParts, shown: Sequence[Demonstration], chat: Chat, attempts: Attempts) -> bool:
    """Return whether they can be rendered."""
    at, what = f"{live.where}.curriculum", f"a demonstration of {live.name}"
    fine, _ = attempts.call(at, what, lambda: _check_rendered(live, shown, chat))
    return fine


def _check_rendered(live: LiveParts, shown: Sequence[Demonstration], chat: Chat) -> None:
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


def base_chat(base: BaseSettings, shown: Sequence[Demonstration]) -> Chat | None:
    """The base's own template; None for a base that is not on this machine or is wrong, which is
    said elsewhere."""
    if base.random is not None:
        from tasks.base.random_model import write_chat_files

        with temporary_folder() as folder:
            write_chat_files(folder, base.random, shown)
            return Chat.load(folder)
    folder = local_folder(str(base.folder))
    if folder is None:
        return None
    try:
        return Chat.load(folder, template_text(base.template))
    except InputError:
        return None


def try_environment(live: LiveParts, shown: Demonstration, attempts: Attempts) -> None:
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


@dataclass(frozen=True, slots=True)
class _NoVerdict:
    """Nothing is learned from the trial."""

    reward: float = 0.0
    breakdown: Mapping[str, float] = field(default_factory=dict[str, float])
    reason: str = ""
    turns: tuple[float, ...] = ()
    weights: Mapping[str, float] = field(default_factory=dict[str, float])
    failed: bool = False

    async def judge(self, transcript: Transcript) -> _NoVerdict:
        return self


class _Demonstrator:
    """A policy that says the turns of a demonstration in order, then the last one again."""

    def __init__(self, chat: Chat, shown: Demonstration) -> None:
        self._turns = list(_turns(chat, shown))

    async def generate(self, prompt_ids: TokenIds, sampling: Sampling) -> Generation:
        said = self._turns.pop(0) if len(self._turns) > 1 else self._turns[0]
        ids = np.array(said[: sampling.max_new_tokens], np.int32)
        versions = WeightVersions.of_runs([(0, len(ids))])
        finish = "stop" if len(ids) == len(said) else "length"
        return Generation(ids, np.full(len(ids), -1.0, np.float32), versions, finish)


def _turns(chat: Chat, shown: Demonstration) -> Iterator[Sequence[int]]:
    """Ids of each of the demonstration's turns, as the policy would write them."""
    ids, mask = chat.training_ids(shown.problem, shown.turns)
    place = iter(ids)
    for is_trained, run in groupby(mask):
        turn = list(islice(place, len(list(run))))
        if is_trained:
            yield turn


def try_driver(parts: LiveParts, shown: Demonstration, chat: Chat, attempts: Attempts) -> None:
    """A driver of the user's own, on a demonstration."""
    named, at = parts.domain.driver, f"{parts.where}.driver"
    if named.name in DRIVERS:
        return
    attempts.wait(
        at,
        f"{named.name}: run()",
        lambda: _one_rollout(parts, chat, shown),
        2 * named.timeout_s,
    )


async def _one_rollout(parts: LiveParts, chat: Chat, shown: Demonstration) -> None:
    """Raises InputError that says what the driver did wrong."""
    domain, named = parts.domain, parts.domain.driver
    live = LiveDomain(
        name=domain.name,
        curriculum=parts.curriculum,
        judge=_NoVerdict(),
        driver=build(named.name, named.options, parts.environment, domain.max_turns),
        max_new_tokens=domain.max_new_tokens,
        driver_timeout_s=named.timeout_s,
    )
    policy = _Demonstrator(chat, shown)
    roller = Roller(generate=policy.generate, chat=chat, context_length=_CONTEXT, seed=0)
    (rollout,) = await roller.roll_group(
        live, shown.problem, 1, temperature=1.0, group_id="trial", seed_name="trial"
    )
    at = f"{named.name}: on problem {shown.problem.id}"
    if rollout.status is Status.FAILED:
        raise InputError(f"{at}: {rollout.transcript.reason}")
    if not rollout.num_trained_tokens:
        raise InputError(f"{at}: the policy wrote nothing; call sessions.turn() at least once")


def decide_mode(
    live: LiveParts,
    problems: Sequence[Problem],
    shown: Sequence[Demonstration],
    chat: Chat,
    attempts: Attempts,
) -> list[Demonstration]:
    """The demonstrations as they are trained on and judged; none where the mode is refused."""
    at = f"{live.where}.curriculum"
    every = problems or [demonstration.problem for demonstration in shown]
    asked = Counter(problem.thinking for problem in every)
    lines: list[str] = []
    for choice, count in asked.items():
        try:
            described = chat.mode.describe(choice)
        except InputError as error:
            attempts.problems.append(f"{at}: {live.name}: {error}")
            return []
        lines.append(
            described
            + (f" for {count} of {len(every)} problems" if asked[choice] < len(every) else "")
        )
        if caution := chat.mode.caution(choice):
            attempts.cautions.append(f"{at}: {live.name}: {caution}")
    if lines:
        attempts.notes.append(f"domain {live.domain.name}: {'; '.join(lines)}")
    fine, decided = attempts.call(
        at, "its mode", lambda: [chat.mode.decided_demonstration(each) for each in shown]
    )
    return decided if fine else []
