"""What a recipe says about the RL objective. Imports nothing heavy.

Named algorithms as compositions: what differs from `Algorithm`'s defaults, which are GRPO's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

from pydantic import Field, GetJsonSchemaHandler, PositiveFloat, PositiveInt, model_validator
from pydantic_core import CoreSchema

from engines.algorithms.advantages import Advantage, GroupAdvantage
from engines.algorithms.aggregation import Aggregation, TokenMean
from engines.algorithms.corrections import Correction, Opsm
from engines.algorithms.divergences import DivergenceLoss
from engines.algorithms.losses import ClipLoss, Kl, Loss, Overlong, PairLoss
from engines.algorithms.parts import Need, is_unwritten, nullable
from engines.algorithms.preference_losses import has_reference
from infra.config import Config

if TYPE_CHECKING:
    from engines.algorithms.inputs import CriticTarget


Preset = Literal[
    "grpo",
    "dapo",
    "dr-grpo",
    "gspo",
    "cispo",
    "rloo",
    "reinforce++",
    "reinforce++-baseline",
    "ppo",
    "icepop",
    "dis",
    "sao",
    "opd",
    "online-dpo",
]

_SYMMETRIC = {"kind": "clip", "clip_high": 0.2}
_ICEPOP = {"weight": {"high": None}, "reject": [{"kind": "ratio", "low": 0.5, "high": 2.0}]}

PRESETS: Mapping[Preset, Mapping[str, Any]] = {
    "grpo": {},
    "dapo": {"overlong": {}},
    "dr-grpo": {
        "advantage": {"kind": "group", "std": False},
        "loss": _SYMMETRIC,
        "aggregation": {"kind": "constant"},
    },
    # Its clip range is narrower than the rounding between two engines at half precision.
    "gspo": {
        "loss": {"kind": "gspo"},
        "aggregation": {"kind": "sequence_mean"},
        "old_logprobs": "trainer",
    },
    "cispo": {"loss": {"kind": "cispo"}},
    "rloo": {"advantage": {"kind": "rloo"}, "loss": _SYMMETRIC},
    "reinforce++": {"advantage": {"kind": "reinforce++"}, "loss": _SYMMETRIC},
    "reinforce++-baseline": {
        "advantage": {"kind": "reinforce++-baseline"},
        "loss": _SYMMETRIC,
    },
    "ppo": {"advantage": {"kind": "gae"}, "loss": _SYMMETRIC},
    "icepop": {
        "correction": _ICEPOP,
        "aggregation": {"kind": "sequence_mean"},
        "old_logprobs": "trainer",
    },
    "dis": {"advantage": {"kind": "group", "std": False}, "loss": {"kind": "dis"}},
    "sao": {"advantage": {"kind": "gae", "alpha": 1.5}, "loss": {"kind": "dis"}},
    "opd": {
        "advantage": {"kind": "distillation"},
        "correction": _ICEPOP,
        "aggregation": {"kind": "sequence_mean"},
        "old_logprobs": "trainer",
    },
    "online-dpo": {
        "advantage": {"kind": "pairs"},
        "loss": {"kind": "dpo"},
        "aggregation": {"kind": "rollout_mean"},
    },
}


def composed(written: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a person wrote, laid over its preset, laid over the defaults; without `preset`.

    What is None counts as not written. A part of the preset's kind, or without a kind, changes
    single fields of the preset's; without a preset one of another kind replaces the default. A
    part's name alone stands for it: `loss: gspo`. An unknown preset stays for the schema to refuse.
    Raises ValueError for a part of another kind than the preset's.
    """
    written = {key: value for key, value in written.items() if value is not None}
    preset = written.pop("preset", None)
    presets: Mapping[str | None, Mapping[str, Any]] = {None: {}, **PRESETS}
    known = presets.get(preset) if isinstance(preset, str | None) else None
    below = _laid_over(defaults, known or {})
    if preset is not None and known is not None:
        _require_same_kinds(written, below, preset)
    whole = _laid_over(below, written)
    return whole if known is not None else {**whole, "preset": preset}


def _require_same_kinds(
    written: Mapping[str, Any], composition: Mapping[str, Any], preset: str
) -> None:
    for name, value in written.items():
        part = composition.get(name)
        theirs = part.get("kind") if isinstance(part, Mapping) else None
        mine = value.get("kind") if isinstance(value, Mapping) else value
        if theirs is not None and isinstance(mine, str) and mine != theirs:
            raise ValueError(
                f"{name} is {mine}, but preset {preset} has {name} {theirs}; leave `{name}` out, or"
                " leave `preset` out and write the fields that should differ from grpo"
            )


def _laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    written = {k: v for k, v in above.items() if not is_unwritten(v, below.get(k))}
    return {**below, **{key: _part(below.get(key), value) for key, value in written.items()}}


def _part(below: Any, above: Any) -> Any:
    if not isinstance(below, Mapping):
        return above
    if isinstance(above, str) and "kind" in below:
        above = {"kind": above}
    if not isinstance(above, Mapping):
        return above
    if "kind" in below and above.get("kind", below["kind"]) != below["kind"]:
        return above
    return _laid_over(below, above)


class Keep(Config):
    """Which tokens may be sampled at a place, once the temperature is applied; SGLang applies the
    three in this order. Those that were kept are recorded, and the trainer's logprobs are of the
    same distribution: renormalised over them."""

    top_k: int = Field(default=256, ge=2, le=1024)
    """so many likeliest tokens; it bounds what is recorded of a token"""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """of these the likeliest, until their probabilities sum to more than this"""
    min_p: float = Field(default=0.0, ge=0, lt=1)
    """of these those of at least this share of the likeliest one's probability"""


class Algorithm(Config):
    """Advantage x loss x correction x aggregation x KL. The defaults are GRPO's.

    `preset` is a named composition; fields that you write beside it change it. What is left out,
    or null, is taken from the preset. A part may be given by its name (`loss: gspo`), or by
    single fields (`loss: {clip_high: 0.3}`); a part of another kind than the preset's is refused.
    Only the composition is part of the digest: two spellings of one algorithm are the same.
    """

    preset: Preset | None = Field(default=None, exclude=True)
    """a named composition to start from; None: grpo. Empty once it is resolved"""
    temperature: PositiveFloat = 1.0
    """sampling temperature; the trainer computes logprobs at the same temperature"""
    keep: Keep | None = Field(default=None, exclude_if=lambda keep: keep is None)
    """samples from the likeliest tokens only, e.g. `{top_p: 0.95}`; None: from all"""
    advantage: Advantage = GroupAdvantage(kind="group")
    """how much better a token's rollout is than expected"""
    loss: Loss = ClipLoss(kind="clip")
    """how an advantage changes a token's logprob"""
    correction: Correction = Correction()
    """corrects for an engine whose probabilities differ from the trainer's"""
    aggregation: Aggregation = TokenMean(kind="token_mean")
    """how the tokens' losses are averaged"""
    kl: Kl = Kl()
    """penalty for moving away from the model that the stage started from"""
    entropy_bonus: float = Field(default=0.0, ge=0)
    """weight of the entropy bonus, per nat; 1e-4 to 1e-2 makes sense"""
    overlong: Overlong | None = None
    """penalty near the token budget"""
    truncated: Literal["train", "mask"] = "train"
    """a rollout that ran out of its token budget is trained on like any other, or (mask) only
    counts in its group's statistics"""
    old_logprobs: Literal["engine", "trainer"] = "engine"
    """the ratio's denominator: what the engine reported, or a forward pass of the trainer before
    the first update of the step"""
    routing_replay: Literal["none", "trainer", "engine"] = "none"
    """which experts a token has in the updates of a mixture of experts: those that its routers
    choose then, or those of the trainer's pass for the old logprobs, or those of the engine that
    sampled it, so that a ratio compares one network with itself"""
    mini_batches: PositiveInt = 2
    """number of optimizer steps for one batch of rollouts"""
    agreement_gate: PositiveFloat = 1e-3
    """largest mean absolute trainer-engine logprob difference for the same weights, in nats per
    token; above it the run stops. Use 0.05 if trainer or engine computes in 16 bits"""

    @property
    def needs(self) -> frozenset[Need]:
        """Return what its parts cannot do without. The plan, the checks, the producer and the
        trainer ask this, and not which estimator it is."""
        of_loss: tuple[Need, ...] = ("reference",) if self.loss_reads_reference else ()
        return frozenset((*self.advantage.needs, *of_loss, *self.kl.needs))

    @property
    def compares_pairs(self) -> bool:
        """Return whether its loss compares two rollouts of each group, and leaves the others
        out."""
        return isinstance(self.loss, PairLoss)

    @property
    def loss_reads_reference(self) -> bool:
        """Return whether the loss is given the reference's logprobs, for its pairs or its KL
        term."""
        of_pairs = isinstance(self.loss, PairLoss) and has_reference(self.loss)
        return of_pairs or (self.kl.coef > 0 and self.kl.place == "loss")

    @property
    def compared_tokens(self) -> int | Literal["all"] | None:
        """Return how many of a teacher's likeliest tokens its loss compares; None: the sampled
        one."""
        return self.loss.top_k if isinstance(self.loss, DivergenceLoss) else None

    @property
    def critic_target(self) -> CriticTarget | None:
        """Return what its critic learns; None if it needs no critic."""
        return self.advantage if _learns_values(self.advantage) else None

    @property
    def compares_engines(self) -> bool:
        """Return whether its correction also needs the trainer's own old logprobs."""
        correction = self.correction
        rejects = any(not isinstance(r, Opsm) for r in correction.reject)
        return correction.weight is not None or rejects

    @model_validator(mode="before")
    @classmethod
    def _compose(cls, data: Any) -> Any:
        return composed(data, _defaults()) if isinstance(data, Mapping) else data

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        schema = super().__get_pydantic_json_schema__(core_schema, handler)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        nullable(properties, list(properties))
        return schema


def _learns_values(advantage: Advantage) -> TypeGuard[CriticTarget]:
    return "critic" in advantage.needs


def _defaults() -> dict[str, Any]:
    """The defaults that a part is laid over, as a person would write them."""
    parts = ("advantage", "loss", "aggregation", "correction", "kl")
    fields = Algorithm.model_fields
    return {name: fields[name].default.model_dump() for name in parts}
