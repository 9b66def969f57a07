"""Imports and builds a domain's parts one by one, so that each that is wrong is named; tries
those with a contract of their own.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from curricula.built_in_curricula import OF_LIBRARIES
from curricula.splits import Admissible
from engines.draws import leave_out_long
from engines.types import Curriculum, Environment, RowCurriculum, Transcript, Verdict
from flows.checks.hook_checks import faults_of
from flows.checks.trial.request import (
    IMPORT_SECONDS,
    Attempts,
    CustomPart,
    PlacedCurriculum,
    PlacedDomain,
)
from infra.errors import EngineError, InputError
from rewards.group_rewards import GroupReward
from rewards.rubric import Rubric, Term
from tasks.base.spec import BaseSettings
from tasks.domain import Domain
from tasks.live_domain import as_term
from tasks.model_folder.folder_report import template_text
from tasks.model_folder.model_files import local_folder

_LIBRARY_SECONDS = 240.0
"""to load a library in a process of its own, and a task's data"""


def imported(where: str, kind: str, name: str, attempts: Attempts) -> bool:
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
    """Import it as the part is found later; an error of the module itself keeps its own line."""
    from infra.hooks import resolve

    module = name.partition(":")[0]
    if importlib.util.find_spec(module.partition(".")[0]) is not None:
        importlib.import_module(module)
    resolve(kind, name, {})


def try_custom(part: CustomPart, attempts: Attempts) -> None:
    if not imported(part.where, part.kind, part.path, attempts):
        return
    fine, faults = attempts.call(
        part.where,
        part.path,
        lambda: faults_of(
            part.kind,
            part.path,
            part.options,
            needs=part.needs,
            domains=part.domains,
            is_beside_training=part.is_beside_training,
        ),
        IMPORT_SECONDS,
    )
    for fault in faults if fine else ():
        attempts.problems.append(
            f"{part.where}: {part.path} breaks the contract: {fault.check}: {fault.saw}"
        )


@dataclass(frozen=True, slots=True)
class LiveParts:
    """A domain's parts, built."""

    where: str
    domain: Domain
    curriculum: Curriculum
    environment: Environment | None
    terms: Sequence[Term]
    groups: Mapping[int, GroupReward]
    """by position among the terms, rewards that judge groups"""
    blind_to_turns: Sequence[str] = ()
    without_thinking: str = ""
    """these two as the placed domain has them"""

    @property
    def name(self) -> str:
        return self.domain.curriculum.name


def build_parts(placed: PlacedDomain, attempts: Attempts) -> LiveParts | None:
    """Build every part by itself, so that each that is wrong is named; None if one is."""
    from curricula.built_in_curricula import build as build_curriculum
    from engines.rollout.drivers.driver import build as build_driver

    where, domain = placed.where, placed.domain
    before = len(attempts.problems)
    terms, groups = _build_rewards(f"{where}.rewards", domain, attempts)
    named, at = domain.curriculum, f"{where}.curriculum"
    curriculum: Any = None
    if imported(at, "curriculum", named.name, attempts):
        _, curriculum = attempts.call(
            at, named.name, lambda: build_curriculum(named.name, named.options, named.mcp)
        )
    if curriculum is None:
        return None
    fine, environment = attempts.call(at, f"{named.name}.environment()", curriculum.environment)
    if fine and environment is None and domain.user is None and domain.max_turns > 1:
        attempts.problems.append(
            f"{where}.max_turns: is {domain.max_turns}, but its curriculum has no environment"
        )
    driver = domain.driver
    if fine and imported(f"{where}.driver", "driver", driver.name, attempts):
        attempts.call(
            f"{where}.driver",
            driver.name,
            lambda: build_driver(driver.name, driver.options, environment, domain.max_turns),
        )
    if placed.is_tried and not isinstance(curriculum, Admissible):
        attempts.problems.append(
            f"{at}: `admit` tries its problems, and {named.name} has no methods"
            " `solution(problem)` and `secrets(problem)` (curricula/splits.py); add them, or"
            " leave `admit` out"
        )
    if len(attempts.problems) > before:
        return None
    return LiveParts(
        where=where,
        domain=domain,
        curriculum=curriculum,
        environment=environment,
        terms=terms,
        groups=groups,
        blind_to_turns=placed.blind_to_turns,
        without_thinking=placed.without_thinking,
    )


async def unasked(transcript: Transcript) -> Verdict:
    """Stand in place of a reward that asks a model: none is served here, and none is paid for."""
    raise EngineError("no model is asked while parts are tried")


def _build_rewards(
    where: str, domain: Domain, attempts: Attempts
) -> tuple[Sequence[Term], Mapping[int, GroupReward]]:
    """One term a reward, and by position those that judge groups, which its term does not ask."""
    from rewards.built_in_rewards import build
    from rewards.group_rewards import build_group_reward

    terms: list[Term] = []
    groups: dict[int, GroupReward] = {}
    for index, t in enumerate(domain.rewards):
        at = f"{where}.{index}"
        if not imported(at, "reward", t.name, attempts):
            continue
        if t.group:
            fine, together = attempts.call(
                at, t.name, lambda t=t: build_group_reward(t.name, t.options)
            )
            if fine:
                terms.append(as_term(t, unasked))
                groups[index] = together
            continue
        if t.asks_model:  # it runs in a stage only; its options were read with the recipe
            terms.append(as_term(t, unasked))
            continue
        fine, reward = attempts.call(at, t.name, lambda t=t: build(t.name, t.options))
        if fine:
            terms.append(as_term(t, reward))
    if len(terms) == len(domain.rewards):
        attempts.call(where, "the rubric", lambda: Rubric(terms))
    return terms, groups


def leave_out_for(curriculum: Curriculum, model: str | None, template: str | None = None) -> None:
    """Take the rows out that are too long for a model on this machine, with the chat template that
    it gets. Raises TrainingStopped for too many."""
    from tasks.message_files.render_rows import Renderer

    folder = local_folder(model) if model else None
    try:
        renderer = Renderer.of_model(folder, template_text(template)) if folder else None
    except InputError:  # said elsewhere
        return
    if renderer is not None:
        leave_out_long(curriculum, renderer.chat, renderer.max_tokens, is_judged=True)


def try_changed(placed: PlacedCurriculum, base: BaseSettings, attempts: Attempts) -> None:
    from curricula.built_in_curricula import build

    named = placed.curriculum
    fine, made = attempts.call(
        placed.where, named.name, lambda: build(named.name, named.options, named.mcp)
    )
    if fine:
        read_rows(placed.where, named.name, made, base, attempts)


def read_rows(
    where: str, name: str, curriculum: Curriculum, base: BaseSettings, attempts: Attempts
) -> bool:
    """Return whether a user's own files can be read, if the curriculum has any; cautions of their
    rows. Those too long for a base that is on this machine are left out."""
    if not isinstance(curriculum, RowCurriculum):
        return True
    seconds = _LIBRARY_SECONDS if name in OF_LIBRARIES else None
    if not attempts.call(
        where, name, lambda: leave_out_for(curriculum, base.folder, base.template), seconds
    )[0]:
        return False
    fine, left_out = attempts.call(where, name, lambda: list(curriculum.left_out), seconds)
    attempts.cautions += [f"{where}: {line}" for line in left_out or ()]
    return fine
