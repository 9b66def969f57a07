"""Where a stage stands in a path: what its kind builds its spec and its inputs from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engines.types import Split
from infra.errors import InputError
from tasks.domain import CurriculumSpec, Domain
from tasks.stage import ADMITTED


@dataclass(frozen=True, slots=True)
class AdmittedBy:
    """The stage that admitted problems, and which it tried."""

    stage: str
    splits: Sequence[Split]
    curricula: Sequence[CurriculumSpec]
    """of the path's domains, as they were there"""


@dataclass(frozen=True, slots=True)
class Place:
    """Models and data are named by the stages that make them.

    Example: Place(0, [agent], base="base", model="agent-rl") for what follows an expert's RL
    """

    seed: int
    domains: Sequence[Domain]
    """what the path is about, as this stage sees it; none for an expert without a domain"""
    base: str
    """the recipe's base model"""
    model: str
    """what the stages before it made of the base; the base at the start, and after `distill`"""
    data: str = ""
    """the dataset of the `distill` before it, as long as nothing was trained since; else empty"""
    rollouts: str = ""
    """the groups of the `rollout` before it, as long as nothing was trained since; else empty"""
    experts: Mapping[str, str] = field(default_factory=dict[str, str])
    """in the unified model's path: the experts' last models, by their domains' names"""
    start: int = 0
    """position of the first problem that no earlier stage of its kind in this path has drawn"""

    admitted: AdmittedBy | None = None
    """the last `admit` before it"""

    def with_problems(self) -> list[Domain]:
        """The domains. Raises InputError where there is none."""
        if not self.domains:
            raise InputError("it draws problems, and the expert has no `domain`; write one")
        return list(self.domains)

    def admitted_problems(self, split: Split) -> dict[str, str]:
        """By role, the stage whose admitted problems are drawn; empty where there is none. Raises
        InputError where it tried other problems than those that would be drawn."""
        by = self.admitted
        if by is None:
            return {}
        if split not in by.splits:
            raise InputError(
                f"it draws problems of the split `{split}`, of which {by.stage} admits none; write"
                f" `{split}: NUMBER` in that stage's `problems`"
            )
        if [domain.curriculum for domain in self.domains] != list(by.curricula):
            raise InputError(
                f"{by.stage} admitted problems of other curriculum options than those here; put"
                " another `admit` before it, with `curriculum_options` beside that one"
            )
        return {ADMITTED: by.stage}
