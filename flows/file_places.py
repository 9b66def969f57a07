"""Makes the places of files that a recipe names absolute, and bare names of the hub whole; merges
what a recipe writes into what it extends.

- Mappings are merged key by key, however deep; a value takes the place of a value.
- A list takes the place of a list, and so does a path. A mapping in place of a list changes items
  of it: by position, or by a key that only one item has, e.g. `path: {rl: {steps: 8}}`.
- `hooks` and `data` are added to those of the other.
- `null` takes out what the other has.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from infra.errors import InputError
from infra.hub import is_hub_name, require_no_page
from tasks.model_folder.model_files import beside, model_beside, template_beside
from tasks.served.served_roles import is_stage


def place_files(data: dict[str, Any], folder: Path, recipes: Collection[str]) -> None:
    """Make places absolute, in place; relative ones are seen from `folder`. `recipes` are the names
    that no owner of a model can have. Raises InputError for a stage where a model is wanted."""
    for name in ("hooks", "data"):
        if name in data:
            data[name] = _absolute(data[name], folder)
    base = data.get("base")
    if isinstance(base, dict) and isinstance(base.get("folder"), str):
        data["base"] = base | {"folder": _model(base["folder"], folder, recipes)}
        if isinstance(base.get("template"), str):
            data["base"]["template"] = template_beside(base["template"], folder)
    storage = data.get("storage")
    if isinstance(storage, dict) and isinstance(storage.get("root"), str):
        data["storage"] = storage | {"root": _store(storage["root"], folder)}
    lm_eval = data.get("lm_eval")
    if isinstance(lm_eval, dict) and isinstance(lm_eval.get("folder"), str) and lm_eval["folder"]:
        data["lm_eval"] = lm_eval | {"folder": str((folder / lm_eval["folder"]).resolve())}
    for served in _served_models(data):
        model = served.get("model")
        if isinstance(model, list):
            served["model"] = [_served(each, folder, recipes) for each in model]
        elif model is not None:
            served["model"] = _served(model, folder, recipes)
    for settings in _path_settings(data):
        served_teachers = settings.get("served_teachers")
        for served in served_teachers.values() if isinstance(served_teachers, dict) else []:
            if isinstance(served, dict):
                _place_teacher(served, folder, recipes)
        teachers = settings.get("teachers")
        if isinstance(teachers, dict):
            settings["teachers"] = {
                domain: _model(model, folder, recipes)
                if isinstance(model, str) and not is_stage(model)
                else model
                for domain, model in teachers.items()
            }
    for source in [*_message_files(data), *_prompt_files(data)]:
        files = source.get("files")
        if isinstance(files, list):
            source["files"] = [beside(f, folder) if isinstance(f, str) else f for f in files]


def _served(model: Any, folder: Path, recipes: Collection[str]) -> Any:
    """A stage stays what it is, and what is written wrong is found later."""
    if not isinstance(model, str) or is_stage(model):
        return model
    return _model(model, folder, recipes)


def _place_teacher(served: dict[str, Any], folder: Path, recipes: Collection[str]) -> None:
    for name in ("model", "tokenizer"):
        written = served.get(name)
        if isinstance(written, str) and written and not is_stage(written):
            served[name] = _model(written, folder, recipes)


def _model(model: str, folder: Path, recipes: Collection[str]) -> str:
    """Where a recipe finds a model. Raises InputError for a stage of a run, which has no place of
    its own here."""
    if not model.strip():
        raise InputError("a recipe's model is empty: give a folder, or hf:ORG/NAME of the hub")
    require_no_page(model)
    place = model_beside(model, folder)
    if is_hub_name(place) and model.partition("/")[0] in recipes:
        raise InputError(
            f"{model}: a recipe names a model by its folder or as hf:ORG/NAME; `tributary"
            " artifacts` shows the folder of each stage, and --model of sft, rl, distill and"
            " evaluate takes RECIPE/STAGE itself"
        )
    return place


def _store(root: str, folder: Path) -> str:
    """A folder is found by every process of a run, whatever folder that works in."""
    path = root.removeprefix("file://")
    if not path or ":" in path or path.startswith(("/", "~", "$")):
        return root
    return f"file://{(folder / path).resolve()}"


def _path_settings(data: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The settings of each stage of a path; what is written wrong is found later."""
    experts = data.get("experts")
    owners = [*experts.values()] if isinstance(experts, dict) else []
    for owner in [*owners, data.get("unified")]:
        path = owner.get("path") if isinstance(owner, dict) else None
        for stage in path if isinstance(path, list) else []:
            for settings in stage.values() if isinstance(stage, dict) else []:
                if isinstance(settings, dict):
                    yield settings


def _message_files(data: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Wherever a stage of a path names files of messages."""
    for settings in _path_settings(data):
        sources = settings.get("data")
        for source in sources if isinstance(sources, list) else [sources]:
            if isinstance(source, dict):
                yield source


def _prompt_files(data: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Wherever a domain's curriculum names files of prompts."""
    experts = data.get("experts")
    for owner in experts.values() if isinstance(experts, dict) else []:
        found: Any = owner
        for key in ("domain", "curriculum", "options", "sources"):
            found = found.get(key) if isinstance(found, dict) else None
        for source in found if isinstance(found, list) else [found]:
            if isinstance(source, dict):
                yield source


def _served_models(data: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Wherever a domain's reward, or its user, names a model that it asks."""
    experts = data.get("experts")
    for owner in experts.values() if isinstance(experts, dict) else []:
        domain = owner.get("domain") if isinstance(owner, dict) else None
        rewards = domain.get("rewards") if isinstance(domain, dict) else None
        user = domain.get("user") if isinstance(domain, dict) else None
        for term in [*(rewards if isinstance(rewards, list) else []), user]:
            served = term.get("served") if isinstance(term, dict) else None
            if isinstance(served, dict):
                yield served


def _absolute(paths: Any, folder: Path) -> Any:
    if not isinstance(paths, list):
        return paths
    return [
        str((folder / Path(p).expanduser()).resolve()) if isinstance(p, str) else p for p in paths
    ]


_ADDED = ("hooks", "data")
Place = tuple[Any, ...]

_OFF = {("evaluate",)}
"""fields of which null says something; elsewhere it takes out what another file wrote"""


@dataclass(slots=True)
class Merged:
    """A recipe's content, and which file wrote what."""

    data: dict[str, Any] = field(default_factory=dict[str, Any])
    files: dict[Place, str] = field(default_factory=dict[Place, str])
    changes: list[str] = field(default_factory=list[str])
    """`a.b=value` that were applied to it since"""
    names_a_place_here: bool = False
    """whether these name a file as seen from the folder of who typed them"""

    def add(self, data: Mapping[str, Any], file: str) -> None:
        """Merge what a file writes into what those that it extends wrote."""
        for key in _ADDED:
            if isinstance(data.get(key), list) and isinstance(self.data.get(key), list):
                data = {**data, key: [*dict.fromkeys([*self.data[key], *data[key]])]}
        self.data = self._merged(self.data, data, (), file)

    def source_of(self, place: Place) -> str:
        """The change that wrote the field, else the file."""
        for change in reversed(self.changes):
            key = change.partition("=")[0]
            if all(part in map(str, place) for part in key.split(".") if not part.isdigit()):
                return f"--set {key}"
        return self.file_of(place)

    def file_of(self, place: Place) -> str:
        """Return which file wrote the field, or the nearest one around it."""
        for length in range(len(place), 0, -1):
            if place[:length] in self.files:
                return self.files[place[:length]]
        return ""

    def _merged(self, old: Any, new: Any, place: Place, file: str) -> Any:
        if isinstance(old, list) and isinstance(new, dict) and new:
            return self._changed(cast("list[Any]", old), cast("dict[Any, Any]", new), place, file)
        if not isinstance(new, dict):
            self._wrote(new, place, file)
            return new
        kept = dict(cast("dict[Any, Any]", old)) if isinstance(old, dict) else {}
        if not kept:
            self._wrote({}, place, file)
        for key, value in cast("dict[Any, Any]", new).items():
            if value is None and key in kept and (*place, key) not in _OFF:
                del kept[key]
                self._wrote(None, (*place, key), file)
            else:
                kept[key] = self._merged(kept.get(key), value, (*place, key), file)
        return kept

    def _changed(
        self, items: list[Any], changes: Mapping[Any, Any], place: Place, file: str
    ) -> list[Any]:
        items = list(items)
        for key, change in changes.items():
            at, inner = entry_of(items, key, f"{file}: {'.'.join(map(str, place))}")
            merged = self._merged(
                items[at], {inner: change} if inner else change, (*place, at), file
            )
            items[at] = merged
        return items

    def _wrote(self, value: Any, place: Place, file: str) -> None:
        """Everything at and below a place is this file's."""
        for known in [known for known in self.files if known[: len(place)] == place]:
            del self.files[known]
        self.files[place] = file


def entry_of(items: Sequence[Any], key: Any, what: str) -> tuple[int, str]:
    """Position of an item of a list, and the key that it is known by, if any.

    By its position, or by a key that only one of the items has, e.g. `rl` for a path's only `rl`.
    """
    if str(key).isdigit() and int(key) < len(items):
        return int(key), ""
    found = [at for at, item in enumerate(items) if isinstance(item, dict) and key in item]
    if len(found) == 1:
        return found[0], str(key)
    if found:
        raise InputError(
            f"{what}: {len(found)} items have `{key}`; say which by its position, e.g."
            f" {found[0]}.{key}"
        )
    keys = dict.fromkeys(str(k) for item in items if isinstance(item, dict) for k in item)
    raise InputError(
        f"{what}: `{key}` is no position in a list of {len(items)}, and a key of none of its items"
        + (f", which have {', '.join(keys)}; a list replaces all of it" if keys else "")
    )
