"""A path: stages in order, each written as `{kind: settings}`.

    path:
      - sft: {steps: 900, optimizer: {lr: 2e-3}}
      - rl: {steps: 24, optimizer: {lr: 2e-4}}
      - distill
      - sft
      - rl

A kind alone is that stage once more, with the settings of the last one of its kind before it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, cast

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    GetJsonSchemaHandler,
    SerializationInfo,
    SerializeAsAny,
    SerializerFunctionWrapHandler,
    ValidatorFunctionWrapHandler,
    create_model,
    model_serializer,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import core_schema

from infra.config import Config
from infra.hooks import did_you_mean
from tasks.domain import Domain, with_needs
from tasks.screen.spec import Pool
from tasks.stage_kinds import PATH_KINDS, is_own, spec_of

OPTIONS, POOLS = "curriculum_options", "pools"
_BESIDE = (OPTIONS, POOLS)


class _Entry(Config):
    """What may stand beside a stage's kind."""

    curriculum_options: dict[str, Any] = Field(default_factory=dict)
    """changes of the curriculum's options from this stage of the path on, e.g. `{levels: [easy,
    medium]}`; the evaluation uses the unchanged options"""
    pools: dict[str, list[Pool]] = Field(default_factory=dict, max_length=1)
    """which problems this stage alone draws, by the name of the `screen` that found them, e.g.
    `{agent-screen: [hard]}`. Empty: all that the last one before it keeps"""


@cache
def written_form(kind: str) -> type[_Entry]:
    """The model of `{kind: settings}`."""
    settings: Any = spec_of(kind).model_fields["settings"].annotation
    field: Any = {kind: (settings, ...)}
    return create_model(f"{kind}-stage", __base__=_Entry, **field)


class PathStage(Config):
    """One stage of a path. Example: PathStage.model_validate({"rl": {"steps": 24, ...}})"""

    kind: str
    settings: SerializeAsAny[Config] | dict[str, Any]
    """as written for a kind of the user's own: reading a recipe runs none of his code"""
    curriculum_options: dict[str, Any]
    pools: dict[str, list[Pool]]

    @model_validator(mode="wrap")
    @classmethod
    def _from_written(cls, data: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        if isinstance(data, cls):
            return data
        kind = _kind_of(data)
        if is_own(kind):
            return handler(_own(kind, data))
        entry = written_form(kind).model_validate(data)
        settings = getattr(entry, kind)
        beside = {key: getattr(entry, key) for key in _BESIDE}
        return handler({"kind": kind, "settings": settings, **beside})

    @model_serializer(mode="wrap")
    def _as_written(
        self, handler: SerializerFunctionWrapHandler, info: SerializationInfo
    ) -> dict[str, Any]:
        dumped = handler(self)
        beside = {key: dumped[key] for key in _BESIDE if dumped[key]}
        return {self.kind: dumped["settings"], **beside}

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        forms = [written_form(kind) for kind in PATH_KINDS]
        own = {
            "title": "your own kind, by `module:Class`",
            "type": "object",
            "patternProperties": {"^[^:]+:[^:]+$": {"type": "object"}},
            "properties": {key: {"type": "object"} for key in _BESIDE},
            "additionalProperties": False,
        }
        written = (
            form.__get_pydantic_json_schema__(form.__pydantic_core_schema__, handler)
            for form in forms
        )
        return {"anyOf": [*written, own]}


def form_with(part: str) -> type[BaseModel] | None:
    """The form of a path's stage that has this field, for those who explain errors."""
    return written_form(part) if part in PATH_KINDS else None


def _kind_of(data: Any) -> str:
    """Raises ValueError, which names what is allowed."""
    known = ", ".join(PATH_KINDS)
    if not isinstance(data, Mapping):
        raise ValueError(f"write a stage as `kind: settings`, not {data!r:.40}; kinds: {known}")
    keys = [str(key) for key in cast("Mapping[Any, Any]", data) if key not in _BESIDE]
    kinds = [key for key in keys if key in PATH_KINDS or is_own(key)]
    if not keys:
        raise ValueError(f"write a stage as `kind: settings`; kinds: {known}")
    if not kinds:
        raise ValueError(
            f"no stage of kind `{keys[0]}` stands in a path; known: {known}, or your own as"
            " `module:Class`."
            f"{did_you_mean(keys[0], PATH_KINDS)}"
        )
    if len(kinds) > 1:
        raise ValueError(f"one stage has one kind, not {' and '.join(kinds)}; begin each with `-`")
    return kinds[0]


def _own(kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """Raises ValueError."""
    unknown = [key for key in data if key not in (kind, *_BESIDE)]
    if unknown:
        known = " and ".join(_BESIDE)
        raise ValueError(f"{unknown[0]}: unknown field beside `{kind}`; known here: {known}")
    if not isinstance(data[kind], Mapping):
        raise ValueError(f"{kind}: its settings are a mapping, not {data[kind]!r:.40}")
    return {"kind": kind, "settings": data[kind], **{key: data.get(key, {}) for key in _BESIDE}}


def _said_again(path: Any) -> Any:
    """With the settings written out where only a kind is."""
    if not isinstance(path, list):
        return path
    last: dict[str, Any] = {}
    stages: list[Any] = []
    for entry in cast("list[Any]", path):
        stage: Any = {entry: None} if isinstance(entry, str) else entry
        if isinstance(stage, dict):
            stage = cast("dict[str, Any]", dict(stage))
            for kind in [key for key in stage if key in PATH_KINDS or is_own(str(key))]:
                if stage[kind] is None:
                    stage[kind] = copy.deepcopy(last.get(kind, {}))
                last[kind] = stage[kind]
        stages.append(stage)
    return stages


Path = Annotated[list[PathStage], BeforeValidator(_said_again)]


def domains_at(
    path: Sequence[PathStage], index: int, domains: Sequence[Domain]
) -> Sequence[Domain]:
    """The domains as a stage of the path sees them: changes of the options last until the next."""
    changed: dict[str, Any] = {}
    for stage in path[: index + 1]:
        changed = stage.curriculum_options or changed
    return [with_options(domain, changed) for domain in domains] if changed else domains


def with_options(domain: Domain, changed: Mapping[str, Any]) -> Domain:
    """The domain with some of its curriculum's options changed."""
    curriculum = domain.curriculum
    options = {**curriculum.options, **changed}
    if curriculum.name == "files":
        options = with_needs(options, domain.rewards)
    return domain.model_copy(
        update={"curriculum": curriculum.model_copy(update={"options": options})}
    )
