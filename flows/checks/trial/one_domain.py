"""Tries a driver, a curriculum or a reward by itself: in a domain made for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from curricula.registry import build as build_curriculum
from engines.types import Split
from flows.checks.trial.bounded_steps import Blind
from flows.checks.trial.parts import try_parts
from flows.checks.trial.request import Findings, PlacedDomain, TrialRequest
from infra.errors import InputError
from rewards.registry import SERVED
from tasks.base.spec import BaseSettings, RandomModel
from tasks.domain import CurriculumSpec, Domain, DriverSpec, RewardTerm

OfDomain: TypeAlias = Literal["driver", "curriculum", "reward"]
"""kinds that are tried so"""

_COUNTS: Mapping[Split, int] = {"sft": 8, "rl": 32, "distill": 32, "heldout": 32}
"""problems of each split that are drawn"""
_BASE = BaseSettings(random=RandomModel())
"""for its tokenizer and chat template"""


def findings_about(kind: OfDomain, name: str, options: dict[str, Any], curriculum: str) -> Findings:
    """What the trial of a recipe would find about the part. Drivers and rewards are tried with the
    problems and demonstrations of `curriculum`. Raises InputError for one that cannot be built."""
    problems = CurriculumSpec(name=curriculum)
    reward = RewardTerm(name="format", outcome=True)
    driver = DriverSpec()
    match kind:
        case "driver":
            driver = DriverSpec(name=name, options=options)
        case "curriculum":
            problems = CurriculumSpec(name=name, options=options)
        case "reward" if name in SERVED:
            raise InputError(f"reward {name!r} asks a served model: `tributary check` tries it")
        case "reward":
            reward = RewardTerm(name=name, options=options, outcome=True)
    has_environment = build_curriculum(problems.name, problems.options).environment() is not None
    domain = Domain(
        name="tried",
        curriculum=problems,
        rewards=[reward],
        driver=driver,
        max_new_tokens=4096,
        max_turns=8 if has_environment else 1,
    )
    request = TrialRequest(
        hooks=[], data=[], base=_BASE, seed=0, changed=[], custom=[],
        domains=[PlacedDomain(where="domain", domain=domain, counts=dict(_COUNTS))],
    )  # fmt: skip
    return try_parts(request, Blind())
