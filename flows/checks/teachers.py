"""Whether a recipe's teachers can teach, seen before anything runs.

One that is a stage of the recipe was made from its base, and differs at most in positions that a
`mid_training` gave to it or to the student.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from engines.families.common.family import ModelShape
from engines.families.common.registry import model_shape
from flows.checks.engines import config_made
from flows.plan import TEACHER, PlannedStage
from flows.recipe import Recipe
from infra.errors import InputError, StorageError
from tasks.base.spec import BaseSettings, BaseSpec
from tasks.model_folder.folder_chat import CHAT_FILES, template_text
from tasks.model_folder.model_files import ModelFiles
from tasks.served.served_roles import is_stage

if TYPE_CHECKING:
    from engines.chat import Chat


def teacher_problems(recipe: Recipe, plan: list[PlannedStage]) -> Iterator[str]:
    """Each as `FIELD: what is wrong; what to do`."""
    made = {stage.name: stage for stage in plan}
    for stage in plan:
        if recipe.base.folder is not None:
            yield from _served(recipe.base, stage)
        if not stage.spec.has_teachers:
            continue
        student = config_made(plan, stage.inputs["model"])
        for domain in stage.spec.sampled_domains:
            teacher = made.get(stage.inputs.get(domain.name, ""))
            if teacher is None:  # it is served
                continue
            what = _other_shape(student, config_made(plan, teacher.name))
            if not teacher.name.startswith(TEACHER) or not isinstance(teacher.spec, BaseSpec):
                if what:
                    yield (
                        f"{stage.where}: {teacher.name}, the teacher of {domain.name}, has another"
                        f" {what} than the student; give both the same `rope` in `mid_training`"
                    )
                continue
            if not what and recipe.base.folder is not None:
                what = _other_tokens(recipe.base, teacher.spec.settings)
            if what:
                yield (
                    f"{teacher.where}: {teacher.spec.settings.folder} has another {what} than the"
                    " student; name a model that was trained from the same base"
                )


def _served(student: BaseSettings, stage: PlannedStage) -> Iterator[str]:
    from tasks.opd.body import other_vocabulary

    for domain, teacher in stage.spec.served_teachers.items():
        folder = teacher.tokenizer or teacher.model
        chats = [] if is_stage(folder) else _chats(student, BaseSettings(folder=folder))
        if len(chats) == 2 and (what := other_vocabulary(*chats)):
            yield (
                f"{stage.where}.served_teachers.{domain}: {folder} has another {what} than the"
                " student; name a model of the same tokenizer"
            )


def _other_shape(*configs: Mapping[str, Any] | None) -> str:
    """How student's and teacher's architectures differ; empty if they do not, or if a folder is out
    of reach."""
    try:
        shapes = [model_shape(config) for config in configs if config is not None]
    except InputError:  # said of the folder itself
        return ""
    return _difference(*shapes) if len(shapes) == 2 else ""


def _difference(student: ModelShape, teacher: ModelShape) -> str:
    """Example: `architecture (num_layers is 5 there and 4 here)`."""
    pairs = {f.name: (getattr(student, f.name), getattr(teacher, f.name)) for f in fields(student)}
    differing = [
        f"{name} is {theirs} there and {ours} here"
        for name, (ours, theirs) in pairs.items()
        if ours != theirs
    ]
    return f"architecture ({', '.join(differing)})" if differing else ""


def _other_tokens(student: BaseSettings, teacher: BaseSettings) -> str:
    from tasks.opd.body import other_tokens

    chats = _chats(student, teacher)
    return other_tokens(*chats) if len(chats) == 2 else ""


def _chats(student: BaseSettings, teacher: BaseSettings) -> list[Chat]:
    """With the template that both get, of those whose folder can be read."""
    from engines.chat import Chat

    template = template_text(student.template)
    chats: list[Chat] = []
    for settings in (student, teacher):
        try:
            files = ModelFiles(str(settings.folder))
            with files.on_this_machine(CHAT_FILES) as folder:
                chats.append(Chat.load(folder, template))
        except (InputError, StorageError):  # said of the folder itself
            continue
    return chats
