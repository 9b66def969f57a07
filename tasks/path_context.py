"""Where a stage stands in a path: what its kind builds its spec and its inputs from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from engines.types import Split
from infra.errors import InputError
from tasks.domain import CurriculumSpec, Domain
from tasks.stage import StageSpec, admitted_role


def keeps_groups(spec: StageSpec) -> bool:
    """Return whether a stage's artifact has whole groups of rollouts, with their problems."""
    policy = spec.policy
    is_kept = policy is not None and spec.fleet is not None and policy.keep_rollouts
    return spec.makes == "rollouts" or is_kept


@dataclass(frozen=True, slots=True)
class AdmittedBy:
    """The stage that admitted problems, and which it tried."""

    stage: str
    splits: Sequence[Split]
    curricula: Sequence[CurriculumSpec]
    """of the path's domains, as they were there"""
    pools: Sequence[str] = ()
    """of a `screen`: those that it keeps"""


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
    sampling_model: str = ""
    """the model whose answers these are; empty where they are of several experts"""
    has_worse_answers: bool = False
    """whether some of these answers may be better than others to the same problem"""
    rollouts: str = ""
    """the groups of the `rollout` before it, as long as nothing was trained since; else empty"""
    group_size: int = 0
    """rollouts of each problem of these; 0: not known"""
    kept: Sequence[str] = ()
    """the stages before it that keep their rollouts whole"""
    mined: str = ""
    """the `mine` before it, as long as nothing was trained since; else empty"""
    experts: Mapping[str, str] = field(default_factory=dict[str, str])
    """in the unified model's path: the experts' last models, by their domains' names"""
    start: int = 0
    """position of the first problem that no earlier stage of its kind in this path has drawn"""

    admitted: AdmittedBy | None = None
    """the last `admit` or `screen` before it"""
    fit: AdmittedBy | None = None
    """the last `admit` before it: a `screen` chooses among its problems"""
    pools: Sequence[str] = ()
    """those of `admitted` that are drawn; none: all that it keeps"""

    def with_problems(self) -> list[Domain]:
        """The domains. Raises InputError where there is none."""
        if not self.domains:
            raise InputError("it draws problems, and the expert has no `domain`; write one")
        return list(self.domains)

    def of_pools(
        self, screens: Mapping[str, AdmittedBy], pools: Mapping[str, Sequence[str]]
    ) -> Place:
        """Return the place where a stage draws only some pools, written by the name of one of the
        `screens` before it. Raises InputError for one that is not there, or keeps others."""
        for stage, wanted in pools.items():
            if stage not in screens:
                raise InputError(
                    f"pools: no `screen` before it in its path is called {stage!r}; name one of"
                    f" {', '.join(screens) or 'none: put a `screen` before it'}"
                )
            kept = screens[stage].pools
            if lacking := [pool for pool in wanted if pool not in kept]:
                raise InputError(
                    f"pools: {stage} keeps {' and '.join(kept)}, not {lacking[0]}; write it into"
                    " that stage's `keep`"
                )
            if not wanted or len(set(wanted)) < len(wanted):
                raise InputError(f"pools: name at least one pool of {stage}, each once")
            return replace(self, admitted=screens[stage], pools=wanted)
        return self

    def require_pools(self, phases: Sequence[Sequence[str]]) -> None:
        """Raises InputError for a phase of pools that the stage is not given."""
        by = self.admitted
        if phases and (by is None or not by.pools):
            raise InputError("phases: no `screen` before it in its path finds pools; put one there")
        given = self.pools or (by.pools if by else ())
        for number, wanted in enumerate(phases):
            if len(set(wanted)) < len(wanted):
                raise InputError(f"phases.{number}.pools: name each pool once")
            if lacking := [pool for pool in wanted if pool not in given]:
                raise InputError(
                    f"phases.{number}.pools: the stage has {' and '.join(given)}, not {lacking[0]};"
                    " write it into the `keep` of the `screen` before it, and into the stage's"
                    " `pools` if it has them"
                )

    def require_mined(self, spec: StageSpec, inputs: Mapping[str, str]) -> None:
        """Raises InputError for a stage that learns something else than the problems that a `mine`
        before it found."""
        if spec.makes in ("model", "data") and self.mined not in ("", *inputs.values()):
            raise InputError(
                f"only `rl` draws the problems that {self.mined} before it finds; put `rl` there"
            )

    @property
    def unscreened(self) -> Place:
        """Return the place without what a `screen` left out, whose model was another."""
        return replace(self, admitted=self.fit, pools=())

    def admitted_problems(self, split: Split) -> dict[str, str]:
        """Return, by role, the stage whose admitted problems are drawn; empty where there is none.
        Raises InputError where it tried other problems than those that would be drawn."""
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
                " another stage of its kind before it, with `curriculum_options` beside that one"
            )
        return {admitted_role(self.pools): by.stage}
