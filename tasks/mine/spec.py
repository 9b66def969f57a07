"""Settings and spec of `mine`."""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import Field, model_validator

from infra.config import Config, Count
from infra.errors import InputError
from rewards.built_in_rewards import PATHOLOGIES, Pathology
from tasks.path_context import Place
from tasks.stage import StageSpec

MINED = "mined_problems"
"""the input of a stage that draws them"""
MINE_FILE = "mine.json"
"""by domain: how many rollouts and problems there were, how often each pathology, what is kept"""
TRIGGERS_FILE = "triggers.jsonl"
"""of each problem that is kept: its rollouts, and how many of them show which pathology"""


class MineSettings(Config):
    """Which problems make a model write broken replies, by the rollouts that earlier stages of the
    path kept. The next `rl` draws these problems alone."""

    kinds: list[Pathology] = Field(default=[*PATHOLOGIES], min_length=1)
    """pathologies that are looked for"""
    most: Count = 256
    """problems of a domain at most: those of which the largest share of rollouts shows one"""

    @model_validator(mode="after")
    def _names_each_once(self) -> Self:
        if len(set(self.kinds)) < len(self.kinds):
            raise ValueError(f"kinds: {', '.join(self.kinds)} has one twice; name each once")
        return self


class MineSpec(StageSpec):
    """Inputs: `model`, whose chat template reads the tokens, and stages that kept their rollouts.
    Artifact: `admitted.parquet` with the problems, which may be none, and what was counted."""

    kind: ClassVar[str] = "mine"
    settings: MineSettings

    @classmethod
    def in_path(cls, settings: MineSettings, place: Place) -> tuple[Self, dict[str, str]]:
        if not place.kept:
            raise InputError(
                "no stage before it in its path keeps its rollouts whole: put a `rollout` before"
                " it, or write `keep_rollouts: true` into an `rl` before it"
            )
        spec = cls(seed=place.seed, settings=settings)
        return spec, {"model": place.model, **{f"rollouts_of_{name}": name for name in place.kept}}
