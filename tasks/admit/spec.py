"""Settings and spec of `admit`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Literal, Self

from pydantic import Field

from engines.types import Split
from infra.config import Count
from tasks.admit.admission import Bounds
from tasks.domain import ScoredDomain
from tasks.path_context import Place
from tasks.stage import StageSpec

REFUSED_FILE = "refused.jsonl"
ADMISSION_FILE = "admission.json"
"""by `DOMAIN, SPLIT`: how many problems were tried, admitted, and refused for which cause"""


class AdmitSettings(Bounds):
    problems: dict[Literal["sft", "rl", "distill"], Count] = Field(
        default={"rl": 256}, min_length=1
    )
    """how many problems of a split are tried, of each domain, e.g. `{rl: 400, distill: 200}`: `rl`,
    `opd` and `rollout` draw from `rl`, `distill` from `distill`, demonstrations are from `sft`.
    Stages after this one draw only what is admitted, and begin again after the last"""


class AdmitSpec(StageSpec):
    """No inputs, as no model is needed. Artifact: `admitted.parquet`, `refused.jsonl` with the
    reasons, and `admission.json`."""

    kind: ClassVar[str] = "admit"
    makes = "problems"
    settings: AdmitSettings
    domains: list[ScoredDomain] = Field(min_length=1)

    @classmethod
    def in_path(cls, settings: AdmitSettings, place: Place) -> tuple[Self, dict[str, str]]:
        domains = [ScoredDomain.of(domain) for domain in place.with_problems()]
        return cls(seed=place.seed, settings=settings, domains=domains), {}

    @property
    def drawn(self) -> Mapping[Split, int]:
        return {**self.settings.problems}

    @property
    def sampled_domains(self) -> Sequence[ScoredDomain]:
        return self.domains

    def problems(self) -> Iterator[str]:
        for domain in self.domains:
            for outcome in domain.outcomes:
                if outcome.served is not None:
                    yield (
                        f"domain {domain.name!r}: its outcome {outcome.name!r} asks a served model,"
                        " and this stage has no servers; leave `admit` out, or make a rule the"
                        " outcome"
                    )
