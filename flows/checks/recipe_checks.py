"""What a schema cannot see: names, hook paths, layouts, whether teachers can teach. Runs before any
job is submitted.

A teacher that is a stage of the recipe was made from its base, and differs at most in positions
that a `mid_training` gave to it or to the student.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from fsspec.implementations.local import LocalFileSystem

from engines.families.common.family import ModelShape
from engines.families.common.registry import model_shape
from flows.checks.contexts import teacher_cautions
from flows.checks.data import (
    message_file_cautions,
    message_file_problems,
    renderer_of,
    seen_before_cautions,
)
from flows.checks.engines import config_made, folder_cautions, folder_problems, value_problems
from flows.checks.hook_checks import hook_problems
from flows.checks.idle_settings import idle_settings
from flows.checks.memory.fit import memory_cautions, memory_problems, size_notes
from flows.checks.servers import (
    determinism_notes,
    determinism_problems,
    fp8_cautions,
    fp8_problems,
    judge_cautions,
    replay_problems,
    served_problems,
    serving_problems,
    sharing_problems,
)
from flows.checks.store_checks import store_cautions, store_problems
from flows.checks.trial.findings import findings_of
from flows.checks.trial.request import request_of
from flows.explain import nearest
from flows.plan import BASE, EVALUATE, MODEL, TEACHER, PlannedStage
from flows.post_train import UNIFIED, plan_post_train
from flows.recipe import Recipe
from infra.data_files.files import find_files
from infra.errors import InputError, StorageError, TrainingStopped, TributaryError
from infra.home import home
from tasks.base.spec import BaseSettings, BaseSpec
from tasks.domain import Domain, RewardSpec, ScoredDomain
from tasks.mid_training.spec import MidTrainingSpec
from tasks.model_folder.folder_report import CHAT_FILES, template_text
from tasks.model_folder.model_files import ModelFiles
from tasks.offline.spec import ROLLOUTS, OfflineSpec
from tasks.rl.part_specs import GroupFilterSpec
from tasks.rollout.spec import RolloutSpec
from tasks.served.served_roles import is_stage
from tasks.stage import StageSpec
from tasks.stage_kinds import PATH_KINDS

if TYPE_CHECKING:
    from engines.chat import Chat
    from tasks.mid_training.packed_stream import PackedStream

_MOST_PACKED = 64
"""sequences that are packed"""


def teacher_problems(recipe: Recipe, plan: list[PlannedStage]) -> Iterator[str]:
    """Yield each problem as `FIELD: what is wrong; what to do`."""
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
    """Return how student's and teacher's architectures differ; empty if they do not, or if a folder
    is out of reach."""
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


def check_recipe(recipe: Recipe, plan: list[PlannedStage], *, again: bool = False) -> None:
    """Raise one `InputError` that lists everything wrong with the recipe as this plan uses it.

    `again` tries the user's parts even if they were found good before.
    """
    problems = [*_names(recipe), *value_problems(recipe, plan), *store_problems(recipe)]
    hooks = list(hook_problems(recipe.hooks, recipe.data))
    problems += hooks
    if not hooks:  # parts can only be tried once their files are there
        problems += findings_of(request_of(recipe, plan), again=again).problems
    problems += [*folder_problems(plan), *message_file_problems(recipe, plan)]
    problems += length_problems(plan)
    problems += [*_resources(recipe, plan), *served_problems(recipe, plan)]
    problems += [*teacher_problems(recipe, plan), *_options(recipe, plan)]
    problems += [*_time_limits(plan), *memory_problems(recipe, plan)]
    problems += determinism_problems(recipe, plan)
    if problems:
        lines = "\n".join(f"  {line}" for line in dict.fromkeys(problems))
        raise InputError(f"recipe {recipe.name} cannot run:\n{lines}")


def cautions(recipe: Recipe, plan: list[PlannedStage]) -> Iterator[str]:
    """Yield what can run and will hardly do what it was meant for."""
    from flows.checks.engines import algorithm_cautions, processor_cautions

    yield from store_cautions(recipe)
    yield from findings_of(request_of(recipe, plan)).cautions
    yield from _teachers_of_noise(recipe, plan)
    yield from idle_settings(recipe, plan)
    yield from folder_cautions(plan)
    yield from message_file_cautions(recipe, plan)
    yield from seen_before_cautions(recipe, plan)
    yield from memory_cautions(recipe, plan)
    for stage in plan:
        yield from algorithm_cautions(stage)
        yield from judge_cautions(stage)
        yield from teacher_cautions(recipe, plan, stage)
        yield from fp8_cautions(stage)
        yield from processor_cautions(recipe, stage)


def notes(recipe: Recipe, plan: list[PlannedStage]) -> Iterator[str]:
    """Yield what was decided where the recipe leaves a choice: whether the base thinks, by domain,
    and what a resumed run promises."""
    yield from determinism_notes(recipe)
    yield from size_notes(recipe, plan)
    yield from findings_of(request_of(recipe, plan)).notes


def _teachers_of_noise(recipe: Recipe, plan: list[PlannedStage]) -> Iterator[str]:
    for stage in plan:
        if stage.spec.has_teachers and stage.inputs["model"] == BASE and recipe.base.random:
            yield (
                f"{stage.where}: starts from the base, which is random here: its answers hold"
                " nothing that a teacher could correct; put `distill` and `sft` before it"
            )


def _names(recipe: Recipe) -> Iterator[str]:
    domains = {domain.name: domain for domain in recipe.domains}
    if recipe.base.random is not None and not domains:
        yield (
            "base.random: its tokenizer is trained on the domains' text, and no expert has a"
            " `domain`; write one, or start from a `folder`"
        )
    for key, expert in recipe.experts.items():
        if expert.domain is None:
            if recipe.unified is not None:
                yield (
                    f"experts.{key}.domain: is missing; `unified` learns of the experts by their"
                    " domains"
                )
            continue
        name = expert.domain.name
        if recipe.unified is not None and name != key:
            yield (
                f"experts.{key}.domain.name: leave it out, or say `{key}` as its key does: what"
                " `unified` learns of a domain comes from the expert of that name"
            )
        if expert.domain != domains[name]:
            yield f"experts.{key}.domain: has the name {name}, which another domain already has"


def _resources(recipe: Recipe, plan: list[PlannedStage]) -> Iterator[str]:
    pool = recipe.resources
    # A recipe serves several flows and changes: what another would run may be named as well.
    owners = [*recipe.experts, UNIFIED]
    other = [f"{owner}-{kind}" for owner in owners for kind in PATH_KINDS]
    other += [EVALUATE] if recipe.evaluate is None else []
    names = dict.fromkeys([*(s.name for s in [*plan, *plan_post_train(recipe)]), *other])
    again = re.compile(rf"({'|'.join(other)})-[1-9]\d*")
    for name in pool.stages:
        if name not in names and not again.fullmatch(name) and not name.startswith(MODEL):
            yield f"resources.stages.{name}: no such stage{nearest(name, names)}"
    for stage in plan:
        world, servers = stage.resources.trainer.world_size, stage.resources.servers
        what = f"its trainer layout needs {world} ranks"
        if stage.critic is not None:
            world += stage.critic.world_size
            what = f"its trainer and critic need {world} ranks together"
        if world > pool.trainer_ranks:
            yield f"stage {stage.name}: {what}, resources.trainer_ranks is {pool.trainer_ranks}"
        named = pool.stages.get(stage.name)
        if named is not None and named.critic is not None and stage.critic is None:
            yield f"resources.stages.{stage.name}.critic: the stage has none; leave it out"
        yield from sharing_problems(stage)
        yield from replay_problems(stage)
        asked = sum(stage.resources.of_role(name).servers for name in stage.roles)
        if servers + asked > pool.servers:
            beside = f" and {asked} of its roles" if asked else ""
            yield (
                f"stage {stage.name}: {servers} servers{beside}, but resources.servers is"
                f" {pool.servers}"
            )


def _time_limits(plan: list[PlannedStage]) -> Iterator[str]:
    """A stage must not count as standing still while a part may still answer."""
    for stage in plan:
        bound = stage.resources.stall_seconds
        for named in _timed(stage.spec):
            if named.timeout_s >= bound:
                yield (
                    f"stage {stage.name}: {named.name} may take timeout_s {named.timeout_s:g},"
                    f" and the stage counts as hung after stall_seconds {bound:g}: raise the"
                    " latter in resources, or lower the former"
                )


def _timed(spec: StageSpec) -> Iterator[Domain | ScoredDomain | RewardSpec | GroupFilterSpec]:
    for domain in spec.sampled_domains:
        yield domain
        yield from domain.rewards if isinstance(domain, Domain) else domain.outcomes
    for part in spec.rollout_parts.values():
        if isinstance(part, GroupFilterSpec):
            yield part


def _options(recipe: Recipe, plan: list[PlannedStage]) -> Iterator[str]:
    """Algorithms that cannot be, options passed through to the engines, and layouts that the
    model does not divide into."""
    from flows.checks.engines import algorithm_problems, fleet_problems, trainer_problems

    for stage in plan:
        yield from trainer_problems(recipe, stage)
        yield from fleet_problems(stage)
        yield from serving_problems(recipe, stage)
        yield from fp8_problems(recipe, stage)
        yield from algorithm_problems(stage)
    yield from _other_temperatures(plan)


def _other_temperatures(plan: list[PlannedStage]) -> Iterator[str]:
    """Saved rollouts of another temperature, at which they are trained on, than the one that is
    written."""
    specs = {stage.name: stage.spec for stage in plan}
    for stage in plan:
        sampled = specs.get(stage.inputs.get(ROLLOUTS, ""))
        if not isinstance(stage.spec, OfflineSpec) or not isinstance(sampled, RolloutSpec):
            continue
        theirs, ours = sampled.settings.temperature, stage.spec.settings.algorithm.temperature
        if theirs != ours:
            yield (
                f"stage {stage.name}: algorithm.temperature: is {ours:g}, and"
                f" {stage.inputs[ROLLOUTS]} samples at {theirs:g}, at which the trainer computes"
                " their probabilities; write the same into both"
            )


def length_problems(plan: Sequence[PlannedStage]) -> Iterator[str]:
    """Sequences that are longer than the model reads, and positions that it cannot be given."""
    for stage in plan:
        if not isinstance(stage.spec, MidTrainingSpec):
            continue
        config = config_made(plan, stage.inputs["model"])
        try:
            if config is not None:
                model_shape(stage.spec.settings.config_of(config))
        except InputError as error:
            yield f"{stage.where}.{error}"


def packing_notes(recipe: Recipe, plan: Sequence[PlannedStage]) -> Iterator[str]:
    """Yield how full sequences are, what is cut or left out, and how often each source is gone
    through; nothing for files or a base elsewhere, and for a base whose tokenizer is not made yet.
    """
    renderer = renderer_of(recipe.base) if recipe.base.random is None else None
    for stage in plan:
        spec = stage.spec
        if renderer is None or not isinstance(spec, MidTrainingSpec):
            continue
        try:
            files = [file for source in spec.settings.data for file in find_files(source.files)]
            if all(isinstance(file.fs, LocalFileSystem) for file in files):
                packed = spec.settings.packed(renderer, spec.seed, home() / "cache" / "files")
                yield f"{stage.where}: {_said(packed, spec)}"
        except TrainingStopped as error:  # of rows behind the first ones
            yield f"{stage.where}: the stage will stop: {error}"
        except TributaryError:  # what is wrong with the files is said elsewhere
            continue


def _said(packed: PackedStream, spec: MidTrainingSpec) -> str:
    settings = spec.settings
    count = min(_MOST_PACKED, settings.steps * settings.batch_size)
    for _ in range(count):
        packed.take_packed()
    read = sum(stream.counts.read for stream in packed.streams)
    bad = sum(stream.counts.num_bad for stream in packed.streams)
    whole = settings.steps * settings.step_tokens * packed.efficiency
    weights = sum(source.weight for source in settings.data)
    passes = [
        f"data.{number} about {whole * source.weight / weights / tokens:.2g} times"
        for number, (source, stream) in enumerate(zip(settings.data, packed.streams, strict=True))
        if (
            tokens := packed.packed_share(number)
            * stream.counts.tokens
            / max(stream.counts.read, 1)
            * stream.num_rows
        )
    ]
    unlearned = packed.unlearned
    left_out = f", {unlearned} of them left out, as they teach nothing" if unlearned else ""
    return (
        f"its first {count} sequences of {settings.sequence_length} tokens are"
        f" {packed.efficiency:.1%} full; of {read} rows {packed.cut} are longer and cut into"
        f" {packed.pieces} pieces{left_out}, {bad} are bad and left out; {settings.steps} steps"
        f" take {whole:,.0f} tokens: {', '.join(passes)}"
    )
