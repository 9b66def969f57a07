"""Defines the recipe, the one tree that a person writes, and refuses the form before paths.
Imports no engine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, cast

import yaml
from pydantic import Field, NonNegativeFloat, field_validator, model_validator

from flows.path import Path
from infra.config import Config
from infra.hooks import did_you_mean
from tasks.base.spec import BaseSettings
from tasks.domain import Domain
from tasks.evaluate.spec import EvaluateSettings
from tasks.lm_eval.spec import LmEvalSettings
from tasks.stage import Resources

Json = dict[str, Any]
RESERVED = ("base", "unified", "evaluate", "lm-eval", "model")
"""names of stages and of inputs"""
NAME_PATTERN, MAX_NAME = r"^[a-z0-9][a-z0-9-]*$", 60
"""what names of recipes and runs look like: they become folders, pages and stages"""


class RoundsSettings(Config):
    """How `distill-rounds` goes on: which round becomes `@best`, how rounds get harder, and when a
    series ends."""

    promote: Literal["sure", "higher"] = "sure"
    """`sure`: a round is promoted if the 95% interval of what it gained over the best one so far,
    problem by problem, is above `margin`; `higher`: if its mean gain is"""
    margin: float = Field(default=0.0, ge=0, lt=1)
    """outcome, 0 to 1, by which a round must be better"""
    patience: int = Field(default=2, ge=1)
    """the series ends after so many rounds in a row that were not promoted"""
    most: int | None = Field(default=None, ge=1)
    """the series ends after so many rounds; empty: no limit"""
    target: float | None = Field(default=None, gt=0, le=1)
    """the series ends once the best round's outcome is this high; empty: no target"""
    harder: dict[str, list[dict[str, Any]]] = Field(default_factory=dict[str, list[dict[str, Any]]])
    """by expert: changes of its curriculum's options in the rounds that the flow adds to its path,
    in the first one, the second one ...; the last one stays. Example: `{agent: [{levels: [easy,
    medium]}, {levels: [medium]}]}`. The evaluation uses the unchanged options"""


_EXPERT = ("sft", "rl", "rounds", "round_options")
_UNIFIED = ("sft", "opd", "rl")
_RECIPE = ("distill", "unify")


def old_form_problem(data: Any) -> str | None:
    """Return what to write instead; None for a recipe of paths."""
    if not isinstance(data, Mapping):
        return None
    recipe = cast("Mapping[str, Any]", data)
    experts = {
        name: _expert_path(expert, recipe)
        for name, expert in _mapping(recipe.get("experts")).items()
        if isinstance(expert, Mapping) and any(field in expert for field in _EXPERT)
    }
    unified = _mapping(recipe.get("unified"))
    is_old = any(field in unified for field in _UNIFIED)
    left = [field for field in _RECIPE if field in recipe]
    if not experts and not is_old and not left:
        return None
    new: Json = {}
    if experts:
        new["experts"] = {name: {"path": path} for name, path in experts.items()}
    if is_old:
        new["unified"] = {"path": _unified_path(unified, recipe)}
    said = ["its stages are written as paths now (docs/recipe.md)."]
    if left:
        said.append(
            f"Leave {' and '.join(f'`{field}`' for field in left)} out: it stands in a path."
        )
    if new:
        said.append("Keep each `domain`; in place of the other fields write")
        said.append("\n" + _as_yaml(new))
    return " ".join(said)


def _expert_path(expert: Mapping[str, Any], recipe: Mapping[str, Any]) -> list[Any]:
    path: list[Any] = [{kind: expert[kind]} for kind in ("sft", "rl") if kind in expert]
    rounds, options = expert.get("rounds", 0), expert.get("round_options") or []
    for number in range(rounds if isinstance(rounds, int) else 0):
        first: Any = {"distill": recipe.get("distill") or {}} if number == 0 else "distill"
        if isinstance(options, list) and number < len(cast("list[Any]", options)):
            settings = first["distill"] if number == 0 else None
            first = {"distill": settings, "curriculum_options": options[number]}
        path += [first, "sft", "rl"]
    return path


def _unified_path(unified: Mapping[str, Any], recipe: Mapping[str, Any]) -> list[Any]:
    operators = str(recipe.get("unify", "sft")).split("+")
    path: list[Any] = []
    if "sft" in operators and unified.get("sft") is not None:
        path += [{"distill": recipe.get("distill") or {}}, {"sft": unified["sft"]}]
    if "opd" in operators and unified.get("opd") is not None:
        path.append({"opd": unified["opd"]})
    return [*path, {"rl": unified["rl"]}] if unified.get("rl") is not None else path


def _mapping(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


class _Short(yaml.SafeDumper):
    """A stage's settings on one line, all else as a block."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


class _Line(dict[str, Any]):
    """Settings that are written on one line."""


_Short.add_representer(
    _Line,
    lambda dumper, value: dumper.represent_mapping("tag:yaml.org,2002:map", value, flow_style=True),
)


def _as_yaml(new: Json) -> str:
    for owner in (
        *new.get("experts", {}).values(),
        *([new["unified"]] if "unified" in new else []),
    ):
        owner["path"] = [_on_lines(entry) for entry in owner["path"]]
    text = yaml.dump(new, Dumper=_Short, sort_keys=False, width=96, default_flow_style=False)
    return "\n".join(f"    {line}" for line in text.splitlines())


def _on_lines(entry: Any) -> Any:
    if not isinstance(entry, dict):
        return entry
    stage = cast("Json", entry)
    return {key: _Line(value) if isinstance(value, dict) else value for key, value in stage.items()}


class Expert(Config):
    """One domain's specialist."""

    domain: Domain | None = None
    """the name is optional; the default is the expert's key. Without a domain the path can hold
    only stages that learn your own files, and nothing is evaluated"""
    path: Path
    """its stages in order, from the base on, e.g. `[{sft: {...}}, {rl: {...}}]`; `[]` evaluates the
    base in this domain"""
    teaches: bool = True
    """whether the unified model learns in this domain, from this expert; `false`: it is only scored
    there, as every model is"""


class Unified(Config):
    """The model that unifies all experts."""

    path: Path = Field(min_length=1)
    """its stages in order, from the base on, over all domains in turn: `distill` samples the
    experts' verified answers, which `sft` learns; `opd` has the experts as teachers"""


class Storage(Config):
    root: str = "file://$TRIBUTARY_HOME/store"
    """any fsspec URL: `file://...`, `s3://bucket/prefix`; environment variables are expanded, and a
    folder is relative to the recipe's file"""
    credentials: str = Field(default="", pattern=r"^([a-z0-9][a-z0-9-]*)?$")
    """name of the Prefect Secret block that holds the store's credentials (`tributary secret`
    creates one); empty: the credentials are in the environment"""

    @field_validator("root")
    @classmethod
    def _is_a_place(cls, root: str) -> str:
        protocol, _, path = root.partition("://")
        if not (path or protocol).strip() or (path == "" and "://" in root):
            raise ValueError("is empty; name a folder, or leave it out for `$TRIBUTARY_HOME/store`")
        if slip := re.match(r"(\w+):/?(?!/)(.*)", root):
            raise ValueError(f"write {slip[1]}://{slip[2]}; got {root!r:.80}")
        return root


class Tracking(Config):
    experiment: str = Field(default="tributary", min_length=1)
    """MLflow experiment that holds the recipe's runs"""
    system_metrics_s: NonNegativeFloat = 15.0
    """seconds from one look at a job's machine (CPU, memory, disk) to the next; 0: none"""


class Recipe(Config):
    """base -> each expert's path -> the unified model's path -> evaluate every model on the way.

    Without `unified` it trains its experts and compares them. Several experts may then
    have the same domain (with the same `name`): they are variants of one expert.
    """

    name: str = Field(pattern=NAME_PATTERN, max_length=MAX_NAME)
    seed: int = Field(default=0, ge=0, lt=2**63)
    base: BaseSettings
    """the model every expert and the unified model start from"""
    experts: dict[str, Expert]
    """by name, e.g. `reasoning`; at least one"""
    unified: Unified | None = None
    """optional; without it the recipe ends with its experts"""
    evaluate: EvaluateSettings | None = EvaluateSettings()
    """how every model is scored on held-out problems; null: none is"""
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
                    f"rounds.harder.{name}: no such expert.{did_you_mean(name, self.experts)}"
                )
        return self

    @model_validator(mode="after")
    def _has_a_teacher(self) -> Recipe:
        if self.unified is not None and not any(e.teaches for e in self.experts.values()):
            raise ValueError("no expert `teaches`, so `unified` has nothing to learn; let one")
        return self

    @property
    def domains(self) -> list[Domain]:
        """Return each domain once, in the experts' order."""
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
