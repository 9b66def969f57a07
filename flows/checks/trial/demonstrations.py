"""Renders demonstrations with their loss mask."""

from __future__ import annotations

from collections.abc import Sequence

from engines.chat import Chat
from engines.types import Demonstration, Problem, RowCurriculum
from flows.checks.trial.bounded_steps import Attempts
from flows.checks.trial.live_parts import LiveParts
from infra.errors import InputError
from infra.processes.leftovers import temporary_folder
from tasks.base.spec import BaseSettings
from tasks.model_folder.location import local_folder

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
        return Chat.load(folder)
    except InputError:
        return None
