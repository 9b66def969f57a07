"""The parts an algorithm is composed of: advantage x loss x correction x aggregation x KL.

Each class is one choice: `kind` says which, `code` where it is computed. Imports nothing heavy: a
recipe is read with it. The formulas are beside the functions, in the file that `code` names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, GetJsonSchemaHandler, PositiveFloat, PositiveInt, model_validator
from pydantic_core import CoreSchema

from engines.algorithms.unwritten import is_unwritten, without_defaults
from infra.config import Choice, Config


class Part(Config):
    """What a choice is made of; its JSON schema gives a form no default to submit."""

    @model_validator(mode="before")
    @classmethod
    def _leave_out_unwritten(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        fields = cls.model_fields
        return {
            key: value
            for key, value in data.items()
            if key not in fields or not is_unwritten(value, fields[key].default)
        }

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        schema = handler(core_schema)
        without_defaults(handler.resolve_ref_schema(schema).get("properties", {}))
        return schema


class PartWithCode(Part, Choice):
    """A part that names the code which computes it."""


Fraction = Annotated[float, Field(ge=0, le=1)]
Share = Annotated[float, Field(gt=0, le=1)]

Need = Literal["spread", "batch", "critic", "teachers", "reference", "turns"]
"""what an estimator cannot do without. spread: rewards that differ within a group, so that a group
of equal rewards teaches nothing and fresh problems replace it; batch: other rollouts of the step;
critic: a value of each token; teachers, reference: their logprob of each token (the reference is
the model that the stage started from); turns: where each turn begins, and what it earned"""

# Advantages


class GroupAdvantage(PartWithCode):
    """(reward - group mean) / group deviation (GRPO), or without the deviation (Dr.GRPO)."""

    code: ClassVar[str] = "engines.algorithms.advantages.group:advantages"
    needs: ClassVar[tuple[Need, ...]] = ("spread",)
    kind: Literal["group"]
    std: bool = True
    """divide by the group's standard deviation; turn it off if the rewards' spread differs widely
    between easy and hard problems, as in the agent domain"""
    whiten: bool = False
    """then normalize the whole batch to mean 0 and variance 1"""


class RlooAdvantage(PartWithCode):
    """reward - mean of the group's other rollouts."""

    code: ClassVar[str] = "engines.algorithms.advantages.rloo:advantages"
    needs: ClassVar[tuple[Need, ...]] = ("spread",)
    kind: Literal["rloo"]
    whiten: bool = False


class OpoAdvantage(PartWithCode):
    """reward - mean of the group's rewards, weighted by the rollouts' lengths (OPO)."""

    code: ClassVar[str] = "engines.algorithms.advantages.opo:advantages"
    needs: ClassVar[tuple[Need, ...]] = ("spread",)
    kind: Literal["opo"]
    whiten: bool = False


class GigpoAdvantage(PartWithCode):
    """`group`'s, and how good each turn was among those that answered the same (GiGPO)."""

    code: ClassVar[str] = "engines.algorithms.advantages.gigpo:advantages"
    needs: ClassVar[tuple[Need, ...]] = ("spread", "turns")
    kind: Literal["gigpo"]
    gamma: Share = 0.95
    """discount per turn of what later turns earn"""
    turn_weight: float = Field(default=1.0, ge=0)
    """of the second term; 0: `group`"""
    std: bool = True
    """divide each term by its standard deviation"""
    whiten: bool = False


class ReinforcePlusPlusAdvantage(PartWithCode):
    """Whitened discounted return of each token, no group (REINFORCE++, arXiv 2501.03262)."""

    code: ClassVar[str] = "engines.algorithms.advantages.reinforce_plus_plus:advantages"
    needs: ClassVar[tuple[Need, ...]] = ("batch",)
    kind: Literal["reinforce++"]
    gamma: Share = 1.0
    """discount per token; below 1, the reward hardly reaches the first tokens of a long reply"""
    whiten: bool = True


class ReinforcePlusPlusBaselineAdvantage(PartWithCode):
    """reward - group mean, then whitened over the batch (REINFORCE++-baseline)."""

    code: ClassVar[str] = "engines.algorithms.advantages.reinforce_plus_plus_baseline:advantages"
    needs: ClassVar[tuple[Need, ...]] = ("spread",)
    kind: Literal["reinforce++-baseline"]
    whiten: bool = True


class GaeAdvantage(PartWithCode):
    """Generalised advantage estimation with a critic's value of each token (PPO, SAO)."""

    code: ClassVar[str] = "engines.algorithms.advantages.critic:advantages"
    needs: ClassVar[tuple[Need, ...]] = ("critic",)
    kind: Literal["gae"]
    gamma: Share = 1.0
    lam: Fraction = 0.95
    """lambda of the policy's advantages; 1: unbiased; lower: relies more on the critic"""
    critic_lam: Fraction = 1.0
    """lambda of the returns that the critic learns from (VC-PPO, arXiv 2503.01491: 1)"""
    alpha: PositiveFloat | None = None
    """lam = 1 - 1 / (alpha x trained tokens) instead of `lam`; SAO 1.5, VAPO 0.05"""
    skip_observations: bool = True
    """tokens of the environment are not steps: the value after a turn is that at the start of the
    next turn; off: every token is a step"""
    whiten: bool = True


class DistillationAdvantage(PartWithCode):
    """Teacher's - student's logprob of each sampled token; rewards are not used."""

    code: ClassVar[str] = "engines.algorithms.advantages.distillation:advantages"
    needs: ClassVar[tuple[Need, ...]] = ("teachers",)
    kind: Literal["distillation"]
    clip: PositiveFloat | None = 5.0
    """largest absolute advantage of a token, in nats; None: no limit"""
    whiten: bool = False


class CustomAdvantage(Part):
    """Your own `def advantage(tokens: StepTokens, **options) -> Tensor` ([R], no gradient)."""

    kind: Literal["custom"]
    path: str
    """`module:function`"""
    options: dict[str, Any] = Field(default_factory=dict)
    needs: tuple[Need, ...] = ("spread",)
    """what it reads; without `spread` every group is kept, and a group of one is enough"""
    whiten: bool = False
    # Its critic learns the sum of the rewards that follow a token.
    gamma: ClassVar[float] = 1.0
    critic_lam: ClassVar[float] = 1.0
    skip_observations: ClassVar[bool] = True

    @property
    def parts(self) -> tuple[str, ...]:
        return (self.path,)


Advantage = Annotated[
    GroupAdvantage
    | RlooAdvantage
    | OpoAdvantage
    | GigpoAdvantage
    | ReinforcePlusPlusAdvantage
    | ReinforcePlusPlusBaselineAdvantage
    | GaeAdvantage
    | DistillationAdvantage
    | CustomAdvantage,
    Field(discriminator="kind"),
]

# Losses


class ClipLoss(PartWithCode):
    """-min(ratio x A, clip(ratio, 1 - clip_low, 1 + clip_high) x A) (PPO; asymmetric in DAPO)."""

    code: ClassVar[str] = "engines.algorithms.losses.clip:clip_loss"
    kind: Literal["clip"]
    clip_low: Share = 0.2
    """ratio is clipped below 1 - clip_low"""
    clip_high: PositiveFloat = 0.28
    """ratio is clipped above 1 + clip_high"""
    dual_clip: float | None = Field(default=None, gt=1)
    """a bad action's loss is at most this times |A|; 3 to 10 makes sense; None: no bound"""


class GspoLoss(PartWithCode):
    """The clipped loss with one ratio per sequence; its clip range is about 1000 times narrower."""

    code: ClassVar[str] = "engines.algorithms.losses.gspo:gspo_loss"
    kind: Literal["gspo"]
    clip_low: Share = 3e-4
    clip_high: PositiveFloat = 4e-4


class CispoLoss(PartWithCode):
    """-clip(ratio) x A x logprob, the clipped ratio constant."""

    code: ClassVar[str] = "engines.algorithms.losses.cispo:cispo_loss"
    kind: Literal["cispo"]
    clip_low: Share = 1.0
    """1: no lower bound, as in MiniMax-M1"""
    clip_high: PositiveFloat = 4.0
    """the ratio is clipped at 1 + clip_high; 3 to 7 makes sense"""


class DisLoss(PartWithCode):
    """-ratio x A x logprob where 1 - clip_low < ratio to the engine < 1 + clip_high, else 0."""

    code: ClassVar[str] = "engines.algorithms.losses.dis:dis_loss"
    kind: Literal["dis"]
    clip_low: Share = 0.3
    """SAO: 0.3 for reasoning with tools, 0.8 for coding agents"""
    clip_high: PositiveFloat = 5.0
    """SAO: 5 for reasoning with tools, 3 for coding agents"""


class ReinforceLoss(PartWithCode):
    """-A x logprob: for one update per batch."""

    code: ClassVar[str] = "engines.algorithms.losses.reinforce:reinforce_loss"
    kind: Literal["reinforce"]


class CustomLoss(Part):
    """Your own `def loss(tokens: LossInputs, **options) -> PolicyLoss` (a loss of each token)."""

    kind: Literal["custom"]
    path: str
    """`module:function`"""
    options: dict[str, Any] = Field(default_factory=dict)

    @property
    def parts(self) -> tuple[str, ...]:
        return (self.path,)


Loss = Annotated[
    ClipLoss | GspoLoss | CispoLoss | DisLoss | ReinforceLoss | CustomLoss,
    Field(discriminator="kind"),
]

# Corrections for an engine that is not the trainer

Level = Literal["token", "sequence", "geometric"]


class Weight(PartWithCode):
    """Each token's loss times trainer's / engine's probability, within bounds (TIS, MIS)."""

    code: ClassVar[str] = "engines.algorithms.corrections.correction:corrected"
    level: Level = "token"
    """the token's own ratio, that of the whole sequence, or its geometric mean per token"""
    low: float = Field(default=0.0, ge=0)
    high: PositiveFloat | None = 2.0
    """None: not truncated"""
    normalize: bool = False
    """divide by the mean over the step's batch, so that the loss keeps its scale"""

    @model_validator(mode="after")
    def _ordered(self) -> Weight:
        if self.high is not None and self.low >= self.high:
            raise ValueError(f"low {self.low} is not below high {self.high}")
        return self


class Band(PartWithCode):
    """Rejects where the ratio leaves [low, high]: IcePop by token, MIS by sequence."""

    code: ClassVar[str] = "engines.algorithms.corrections.correction:corrected"
    kind: Literal["ratio"]
    level: Level = "token"
    low: float = Field(default=0.5, ge=0)
    high: PositiveFloat = 2.0

    @model_validator(mode="after")
    def _ordered(self) -> Band:
        if self.low >= self.high:
            raise ValueError(f"low {self.low} is not below high {self.high}")
        return self


class Veto(PartWithCode):
    """Rejects a sequence if the ratio of any of its tokens is below a floor."""

    code: ClassVar[str] = "engines.algorithms.corrections.correction:corrected"
    kind: Literal["veto"]
    floor: Share = 1e-4


class Opsm(PartWithCode):
    """Off-policy sequence masking: rejects tokens with A < 0 in sequences far from the policy."""

    code: ClassVar[str] = "engines.algorithms.corrections.off_policy:off_policy_sequences"
    kind: Literal["opsm"]
    delta: PositiveFloat = 1e-4
    """a sequence is far if its mean of engine's - current logprob is above this, in nats"""


Rejection = Annotated[Band | Veto | Opsm, Field(discriminator="kind")]


class Correction(Part):
    """Importance weights and rejections; each may be used alone; none by default."""

    weight: Weight | None = None
    reject: list[Rejection] = Field(default_factory=list[Band | Veto | Opsm])


# Aggregation


class TokenMean(Part):
    """Over all trained tokens of the mini-batch."""

    kind: Literal["token_mean"]


class SequenceMean(Part):
    """Over samples, of each one's mean over its tokens."""

    kind: Literal["sequence_mean"]


class RolloutMean(Part):
    """Over rollouts, of each one's mean over the tokens of all its samples."""

    kind: Literal["rollout_mean"]


class ConstantMean(Part):
    """Over rollouts, of the sum over tokens divided by a constant (Dr.GRPO)."""

    kind: Literal["constant"]
    length: PositiveInt | None = None
    """tokens; None: the rollout's token budget"""


Aggregation = Annotated[
    TokenMean | SequenceMean | RolloutMean | ConstantMean, Field(discriminator="kind")
]

# Terms beside the policy's


class Kl(PartWithCode):
    """KL penalty towards the model that the stage started from; coef 0: no penalty and no cost."""

    code: ClassVar[str] = "engines.algorithms.kl:kl_estimate"
    coef: float = Field(default=0.0, ge=0)
    """1e-3 to 1e-1 makes sense"""
    estimator: Literal["k1", "k2", "k3"] = "k3"
    place: Literal["loss", "reward"] = "loss"
    """a term of the loss, or of each token's reward"""
    unbiased: bool = False
    """in the loss, with k1 or k3: times the ratio to the old policy, so that later mini-batches
    stay exact"""

    @property
    def needs(self) -> tuple[Need, ...]:
        return ("reference",) if self.coef else ()

    @property
    def parts(self) -> tuple[str, ...]:
        return (self.code,) if self.coef else ()


class Overlong(PartWithCode):
    """DAPO's soft penalty near the token budget, added to the training reward."""

    code: ClassVar[str] = "engines.algorithms.overlong:overlong_penalty"
    margin: Share = 0.2
    """share of the budget, at its end, over which the penalty falls from 0 to -weight"""
    weight: PositiveFloat = 1.0
    budget: PositiveInt | None = None
    """tokens; None: the rollout's token budget"""
