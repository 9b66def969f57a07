"""The recipe: the one tree that a person writes. Reading one imports no engine."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, NonNegativeFloat, model_validator

from flows.old_form import old_form_problem
from flows.path import Path
from flows.rounds.settings import RoundsSettings
from infra.config import Config
from infra.hooks import did_you_mean
from tasks.base.spec import BaseSettings
from tasks.domain import Domain
from tasks.evaluate.spec import EvaluateSettings
from tasks.lm_eval.spec import LmEvalSettings
from tasks.stage import Resources

RESERVED = ("base", "unified", "evaluate", "lm-eval", "model")
"""names of stages and of inputs"""
NAME_PATTERN, MAX_NAME = r"^[a-z0-9][a-z0-9-]*$", 60
"""what names of recipes and runs look like: they become folders, pages and stages"""


class Expert(Config):
    """One domain's specialist."""

    domain: Domain | None = None
    """the name is optional; the default is the expert's key. Without a domain the path can hold
    only `sft` on your own files, and nothing is evaluated"""
    path: Path
    """its stages in order, from the base on, e.g. `[{sft: {...}}, {rl: {...}}]`; `[]` evaluates the
    base in this domain"""


class Unified(Config):
    """The model that unifies all experts."""

    path: Path = Field(min_length=1)
    """its stages in order, from the base on, over all domains in turn: `distill` samples the
    experts' verified answers, which `sft` learns; `opd` has the experts as teachers"""


class Storage(Config):
    root: str = "file://$TRIBUTARY_HOME/store"
    """any fsspec URL: `file://...`, `s3://bucket/prefix`; environment variables are expanded"""
    credentials: str = Field(default="", pattern=r"^([a-z0-9][a-z0-9-]*)?$")
    """name of the Prefect Secret block that holds the store's credentials (`tributary secret`
    creates one); empty: the credentials are in the environment"""


class Tracking(Config):
    experiment: str = "tributary"
    """MLflow experiment that holds the recipe's runs"""
    system_metrics_s: NonNegativeFloat = 15.0
    """seconds from one look at a job's machine (CPU, memory, disk) to the next; 0: none"""


class Recipe(Config):
    """base -> each expert's path -> the unified model's path -> evaluate every model on the way.

    Without `unified` it trains its experts and compares them. Several experts may then
    have the same domain (with the same `name`): they are variants of one expert.
    """

    name: str = Field(pattern=NAME_PATTERN, max_length=MAX_NAME)
    seed: int = Field(default=0, ge=0)
    base: BaseSettings
    """the model every expert and the unified model start from"""
    experts: dict[str, Expert]
    """by name, e.g. `reasoning`; at least one"""
    unified: Unified | None = None
    """optional; without it the recipe ends with its experts"""
    evaluate: EvaluateSettings = EvaluateSettings()
    lm_eval: LmEvalSettings = LmEvalSettings()
    """tasks of lm-evaluation-harness, on which every model is scored too; needs `lm-eval`"""
    rounds: RoundsSettings = RoundsSettings()
    """how `distill-rounds` goes on"""
    determinism: Literal["exact", "close", "auto"] = "close"
    """`exact`: a run that was killed and resumed gives the same bits as an undisturbed one; `check`
    refuses recipes for which this is not guaranteed (GPUs are not tested yet). `close`: nothing is
    lost or repeated, but the last bits may differ. `auto`: `close` on a host with a GPU, `exact` on
    every other one; `check` says which it is"""
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
    def _has_paths(cls, data: Any) -> Any:
        if problem := old_form_problem(data):
            raise ValueError(problem)
        return data

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
    def _names_are_free(self) -> Recipe:
        for name in self.experts:
            if name in RESERVED or name.startswith("unified-"):
                raise ValueError(
                    f"experts.{name}: the name would collide with a stage's; choose another"
                )
        return self

    @model_validator(mode="after")
    def _rounds_are_of_experts(self) -> Recipe:
        for name in self.rounds.harder:
            if name not in self.experts:
                raise ValueError(
                    f"rounds.harder.{name}: no such expert{did_you_mean(name, self.experts)}"
                )
        return self

    @property
    def domains(self) -> list[Domain]:
        """Each once, in the experts' order."""
        first: dict[str, Domain] = {}
        for expert in self.experts.values():
            if expert.domain is not None:
                first.setdefault(expert.domain.name, expert.domain)
        return list(first.values())


def _with_domain_name(name: Any, expert: Any) -> Any:
    if not isinstance(expert, dict) or not isinstance(expert.get("domain"), dict):
        return expert
    written = {
        field: value for field, value in expert["domain"].items() if (field, value) != ("name", "")
    }
    return expert | {"domain": {"name": name} | written}
