"""Checks how long texts may be: those that a stage's servers write, and those that served teachers
score, which take whole rollouts; one that is longer ends the stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from engines.families.common.model_config import usable_positions
from flows.checks.engines import config_made, model_report, positions_of
from flows.plan import PlannedStage
from flows.recipe import Recipe
from tasks.served.served_roles import ServedRole

_RESERVE = 8
"""positions that SGLang keeps free at the end of its context"""
_OWN = 1
"""position that a server needs beside the text that it scores"""


def context_problems(recipe: Recipe, plan: Sequence[PlannedStage]) -> Iterator[str]:
    """Answers that no context holds; how long the prompts are is seen when parts are tried."""
    placed = {
        e.domain.name: f"experts.{key}.domain" for key, e in recipe.experts.items() if e.domain
    }
    for stage in plan:
        yield from _of_teachers(plan, placed, stage)
        if stage.spec.fleet is None:
            continue
        where, field = "the model's context", "base: the model's context"
        length, written = positions_of(recipe, plan, stage), stage.spec.fleet.context_length
        if written is not None:
            where = field = f"{stage.where}.fleet.context_length"
            if length is not None and written > length:
                yield _too_long(where, written, "this model", length)
                continue
            length = written
        if length is None:
            continue
        most = length - _RESERVE - 1
        if most < 1:
            yield (
                f"{field} of {length} tokens holds no prompt and answer beside the {_RESERVE} that"
                f" SGLang keeps free; at least {_RESERVE + 2}, and the prompts' length"
            )
            continue
        for domain in stage.spec.sampled_domains:
            if domain.max_new_tokens > most:
                yield (
                    f"{placed[domain.name]}.max_new_tokens: is {domain.max_new_tokens}, but"
                    f" {where} has {length} tokens, of which SGLang keeps {_RESERVE} free; allowed:"
                    f" 1 to {most} minus the prompt's tokens"
                )


def _too_long(where: str, length: int, model: str, positions: int) -> str:
    return (
        f"{where}: is {length}, but texts of {model} have at most {positions} tokens; write"
        f" {positions} or less, or leave it out"
    )


def _of_teachers(
    plan: Sequence[PlannedStage], placed: Mapping[str, str], stage: PlannedStage
) -> Iterator[str]:
    """Answers that a teacher's context does not hold, whatever the prompts; `placed`: where the
    recipe has each domain."""
    for domain, role in _teachers(stage):
        where = f"{stage.where}.served_teachers.{domain}"
        length, positions = role.fleet.context_length, _positions(plan, stage, role)
        if length is not None and positions is not None and length > positions:
            yield _too_long(f"{where}.fleet.context_length", length, role.model, positions)
            continue
        length = length or positions
        answer = {d.name: d.max_new_tokens for d in stage.spec.sampled_domains}[domain]
        if length is not None and answer + _OWN >= length:
            yield (
                f"{where}: takes {length} tokens, prompt and all, and scores answers of up to"
                f" {answer} ({placed[domain]}.max_new_tokens); raise its `fleet.context_length`,"
                " lower `max_new_tokens`, or name another model"
            )


def teacher_cautions(
    recipe: Recipe, plan: Sequence[PlannedStage], stage: PlannedStage
) -> Iterator[str]:
    """Teachers that take shorter texts than the student may write."""
    fleet = stage.spec.fleet
    ours = None if fleet is None else fleet.context_length or positions_of(recipe, plan, stage)
    for domain, role in _teachers(stage):
        length = role.fleet.context_length or _positions(plan, stage, role)
        if ours is not None and length is not None and length < ours - _RESERVE + _OWN:
            yield (
                f"{stage.where}.served_teachers.{domain}: takes {length} tokens, and a rollout may"
                f" have {ours - _RESERVE}: one that is too long for the teacher ends the stage; set"
                f" {stage.where}.fleet.context_length to {length}"
            )


def _teachers(stage: PlannedStage) -> Iterator[tuple[str, ServedRole]]:
    """Each that has servers of the stage, by its domain: of others nothing is known."""
    for domain, teacher in stage.spec.served_teachers.items():
        role = teacher.served_role(domain)
        if role is not None:
            yield domain, role


def _positions(plan: Sequence[PlannedStage], stage: PlannedStage, role: ServedRole) -> int | None:
    """Return the positions of a teacher's model; None where its folder is out of reach."""
    name = stage.inputs[role.input]
    made = next((each for each in plan if each.name == name), None)
    folder = None if made is None else made.spec.served_folder
    report = None if folder is None else model_report(folder)
    config = config_made(plan, name) if report is None else report.config
    return usable_positions(config or {})
