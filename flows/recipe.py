"""The recipe: the one tree that a person writes. Reading one imports no engine."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from infra.config import Config
from tasks.base.spec import BaseSettings
from tasks.distill.spec import DistillSettings
from tasks.domain import Domain
from tasks.evaluate.spec import EvaluateSettings
from tasks.opd.spec import OpdSettings
from tasks.rl.spec import RlSettings
from tasks.sft.spec import SftSettings
from tasks.stage import Resources

NAME_PATTERN, MAX_NAME = r"^[a-z0-9][a-z0-9-]*$", 60
"""what names of recipes and runs look like: they become folders, pages and stages"""


class Expert(Config):
    """One domain's specialist: a cold start by SFT, then RL, then rounds of self-distillation."""

    domain: Domain
    """the name is optional; the default is the expert's key"""
    sft: SftSettings
    """cold start on the curriculum's demonstrations"""
    rl: RlSettings
    rounds: int = Field(default=0, ge=0, le=8)
    """how many times a new SFT from the base trains on the RL expert's own verified answers, then
    RL again, each time on problems that no round used before"""
    round_options: list[dict[str, Any]] = Field(default_factory=list[dict[str, Any]])
    """changes of the curriculum's options in rounds 1, 2, ...; the last applies to later rounds,
    e.g. `[{}, {levels: [easy, medium]}]`. The evaluation uses the unchanged options"""

    def domain_of_round(self, number: int) -> Domain:
        """The domain as a round (from 1) sees it."""
        if not self.round_options:
            return self.domain
        changed = self.round_options[min(number, len(self.round_options)) - 1]
        curriculum = self.domain.curriculum
        options = {**curriculum.options, **changed}
        return self.domain.model_copy(
            update={"curriculum": curriculum.model_copy(update={"options": options})}
        )


class Unified(Config):
    """The model that unifies all experts."""

    sft: SftSettings | None = None
    """from the base model, on the experts' verified answers; for `unify: sft` and `sft+opd`"""
    opd: OpdSettings | None = None
    """after SFT, or directly from the base, on its own answers with the experts as teachers; for
    `unify: sft+opd` and `opd`"""
    rl: RlSettings
    """last, over all domains in turn"""


class Storage(Config):
    root: str = "file://$TRIBUTARY_HOME/store"
    """any fsspec URL: `file://...`, `s3://bucket/prefix`; environment variables are expanded"""
    credentials: str = Field(default="", pattern=r"^([a-z0-9][a-z0-9-]*)?$")
    """name of the Prefect Secret block that holds the store's credentials (`tributary secret`
    creates one); empty: the credentials are in the environment"""


class Tracking(Config):
    experiment: str = "tributary"
    """MLflow experiment that holds the recipe's runs"""


class Recipe(Config):
    """base -> experts (SFT, RL) -> unified (SFT from base, OPD, or both; RL) -> evaluate all.

    Without `unified` it trains its experts and compares them. Several experts may then
    have the same domain (with the same `name`): they are variants of one expert.
    """

    name: str = Field(pattern=NAME_PATTERN, max_length=MAX_NAME)
    seed: int = Field(default=0, ge=0)
    base: BaseSettings
    """the model every expert and the unified model start from"""
    experts: dict[str, Expert]
    """by name, e.g. `reasoning`; at least one"""
    distill: DistillSettings = DistillSettings()
    unify: Literal["sft", "opd", "sft+opd"] = "sft"
    """how the experts become one model: `sft` trains the base on their verified answers; `opd`
    trains the base on its own answers, scored by them; `sft+opd` does one after the other"""
    unified: Unified | None = None
    """optional; without it the recipe ends with its experts"""
    evaluate: EvaluateSettings = EvaluateSettings()
    determinism: Literal["exact", "close"] = "close"
    """`exact`: a run that was killed and resumed gives the same bits as an undisturbed one; `check`
    refuses recipes for which this is not guaranteed (GPUs are not tested yet). `close`: nothing is
    lost or repeated, but the last bits may differ"""
    resources: Resources = Resources()
    storage: Storage = Storage()
    tracking: Tracking = Tracking()
    hooks: list[str] = Field(default_factory=list)
    """your own Python files or package folders that dotted paths refer to; they are sent with every
    job, and are part of the digests of the stages that use them. Relative to the recipe's file"""
    data: list[str] = Field(default_factory=list)
    """files that hooks read, folders of them, or patterns (`lists/*.txt`); they are sent with
    every job, and their content is part of the digests of the stages that use a hook. Relative
    to the recipe's file; a hook finds them with `infra.user_files.data_path`"""

    @model_validator(mode="before")
    @classmethod
    def _name_domains(cls, data: Any) -> Any:
        """An expert's key is its domain's name."""
        if not isinstance(data, dict) or not isinstance(data.get("experts"), dict):
            return data
        return data | {"experts": {k: _with_domain_name(k, v) for k, v in data["experts"].items()}}

    @model_validator(mode="after")
    def _has_an_expert(self) -> Recipe:
        if not self.experts:
            raise ValueError("a recipe needs at least one expert under `experts`")
        return self

    @model_validator(mode="after")
    def _says_how_to_unify(self) -> Recipe:
        if self.unified is None:
            # A recipe on record says its default, too.
            if self.unify != "sft":
                raise ValueError(
                    "unify: it needs `unified`; write that section, or leave `unify` out"
                )
            return self
        written = {"sft": self.unified.sft, "opd": self.unified.opd}
        missing = [part for part in self.unify.split("+") if written[part] is None]
        if missing:
            raise ValueError(
                f"unify: {self.unify} needs `unified.{missing[0]}`, at least its steps and"
                " optimizer"
            )
        return self

    @property
    def domains(self) -> list[Domain]:
        """Each once, in the experts' order."""
        first: dict[str, Domain] = {}
        for expert in self.experts.values():
            first.setdefault(expert.domain.name, expert.domain)
        return list(first.values())


def _with_domain_name(name: Any, expert: Any) -> Any:
    if not isinstance(expert, dict) or not isinstance(expert.get("domain"), dict):
        return expert
    written = {
        field: value for field, value in expert["domain"].items() if (field, value) != ("name", "")
    }
    return expert | {"domain": {"name": name} | written}
