"""What a recipe says about the RL objective. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, GetJsonSchemaHandler, PositiveFloat, PositiveInt, model_validator
from pydantic_core import CoreSchema

from engines.algorithms.choices import (
    Advantage,
    Aggregation,
    ClipLoss,
    Correction,
    GaeAdvantage,
    GroupAdvantage,
    Kl,
    Loss,
    Opsm,
    Overlong,
    TokenMean,
)
from engines.algorithms.presets import Preset, composed
from engines.algorithms.unwritten import nullable
from infra.config import Config


class Algorithm(Config):
    """Advantage x loss x correction x aggregation x KL. The defaults are GRPO's.

    `preset` names a composition; what else is written changes single fields of it. What is left
    out, or null, is as the preset says. A part may be given by its name (`loss: gspo`), or by
    single fields (`loss: {clip_high: 0.3}`); one of another kind than the preset's is refused. The
    composition is what enters the digest: two spellings of one algorithm are one.
    """

    preset: Preset | None = Field(default=None, exclude=True)
    """a named composition to start from; None: grpo. Gone once it is resolved"""
    temperature: PositiveFloat = 1.0
    """of sampling; the trainer scores at the same one, so that both speak of one distribution"""
    advantage: Advantage = GroupAdvantage(kind="group")
    """how much better than expected"""
    loss: Loss = ClipLoss(kind="clip")
    """what an advantage does to a token's logprob"""
    correction: Correction = Correction()
    """for an engine whose probabilities are not the trainer's"""
    aggregation: Aggregation = TokenMean(kind="token_mean")
    """how tokens' losses become one"""
    kl: Kl = Kl()
    """towards the model the stage began with"""
    entropy_bonus: float = Field(default=0.0, ge=0)
    """nats are worth this much loss; 1e-4 to 1e-2 makes sense"""
    overlong: Overlong | None = None
    """penalty near the token budget"""
    truncated: Literal["train", "mask"] = "train"
    """what a rollout that ran out of budget does: train like any other, or only count in its
    group's statistics"""
    old_logprobs: Literal["engine", "trainer"] = "engine"
    """the ratio's denominator: what the engine reported, or a pass of the trainer before the
    first update of the step"""
    mini_batches: PositiveInt = 2
    """optimizer steps that share one batch of rollouts"""
    agreement_gate: PositiveFloat = 1e-3
    """largest mean absolute trainer-engine logprob difference of one version's weights, in nats a
    token; beyond it the run stops. 0.05 where trainer or engine computes in 16 bits"""

    @property
    def has_critic(self) -> bool:
        """Whether its advantage compares rewards with a critic's values."""
        return isinstance(self.advantage, GaeAdvantage)

    @property
    def compares_engines(self) -> bool:
        """Whether its correction needs the trainer's own old logprobs beside the engine's."""
        correction = self.correction
        rejects = any(not isinstance(r, Opsm) for r in correction.reject)
        return correction.weight is not None or rejects

    @property
    def needs_group_spread(self) -> bool:
        """Whether a group of equal rewards teaches nothing under its advantage."""
        return self.advantage.needs_group_spread

    @model_validator(mode="before")
    @classmethod
    def _compose(cls, data: Any) -> Any:
        return composed(data, _defaults()) if isinstance(data, Mapping) else data

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        nullable(properties, list(properties))
        return schema


def _defaults() -> dict[str, Any]:
    """The defaults that a part is laid over, as a person would write them."""
    parts = ("advantage", "loss", "aggregation", "correction", "kl")
    fields = Algorithm.model_fields
    return {name: fields[name].default.model_dump() for name in parts}
