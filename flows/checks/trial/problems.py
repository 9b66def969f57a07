"""Draws a curriculum's problems and renders demonstrations: enough, the same again, no split
shares any.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations

from engines.chat import Chat
from engines.draws import draw_problems
from engines.types import Demonstration, Problem, RowCurriculum, Split
from flows.checks.trial.bounded_steps import Attempts
from flows.checks.trial.live_parts import LiveParts
from infra.errors import InputError
from infra.processes.leftovers import temporary_folder
from tasks.base.spec import BaseSettings
from tasks.model_folder.folder_chat import template_text
from tasks.model_folder.model_files import local_folder

_SHOWN = 60
"""characters of a shared problem"""


def overlaps(drawn: Mapping[Split, Sequence[Problem]]) -> Iterator[str]:
    """A sentence for each two splits that share a problem or an id."""
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
    """What makes two problems the same problem."""
    said = [[message.role, message.content] for message in problem.messages]
    return json.dumps([said, problem.reference], sort_keys=True)


def try_problems(
    live: LiveParts, counts: dict[Split, int], seed: int, attempts: Attempts
) -> list[Problem]:
    """Those that were drawn; none where one of the splits cannot be drawn right."""
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
    """Whether they can be rendered."""
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
