"""The form that recipes had before paths, and what the same recipe looks like now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import yaml

_EXPERT = ("sft", "rl", "rounds", "round_options")
_UNIFIED = ("sft", "opd", "rl")
_RECIPE = ("distill", "unify")

Json = dict[str, Any]


def old_form_problem(data: Any) -> str | None:
    """What to write instead; None for a recipe of paths."""
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
