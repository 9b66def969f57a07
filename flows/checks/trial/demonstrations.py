"""Renders demonstrations with their loss mask."""

from __future__ import annotations

from collections.abc import Sequence

from engines.chat import Chat
from engines.types import Demonstration
from flows.checks.trial.bounded_steps import Attempts
from flows.checks.trial.live_parts import LiveParts
from infra.errors import InputError
from infra.processes.leftovers import temporary_folder
from tasks.base.spec import BaseSettings
from tasks.model_folder.location import local_folder


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
