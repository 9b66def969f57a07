"""Reads a recipe: a YAML file, or a shipped or saved name, with `a.b=value` changes."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from flows.explain import explained, nearest, not_a_recipe, yaml_fault
from flows.file_places import Merged, entry_of, place_files
from flows.recipe import NAME_PATTERN, Recipe
from infra.data_files.heads import read_text
from infra.errors import InputError
from infra.home import home
from infra.secret_references import written_secrets

SHIPPED = Path(__file__).parent / "recipes"


class _Loader(yaml.SafeLoader):
    """YAML that refuses a key written twice, a key that is no scalar and an alias within what it
    names. It reads `2e-3` as a number and a day as a text, and refuses what a person may mean
    otherwise than YAML 1.1 takes it."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        line = self.peek_event().start_mark.line + 1
        node = super().compose_node(parent, index)
        if node is not None and node.end_mark is None:  # it is still being read
            raise InputError(f"line {line}: an alias stands within what it names; write it out")
        return node

    def get_single_node(self) -> yaml.Node | None:
        node = super().get_single_node()
        if node is not None and _written_out(node, {}) > _MOST_NODES:
            raise InputError(
                f"its aliases stand for more than {_MOST_NODES} values, written out; use fewer"
            )
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            line = key_node.start_mark.line + 1
            if not isinstance(key, Hashable):
                raise InputError(
                    f"line {line}: a mapping or a list is no key; if `{{{{ ... }}}}` is meant as"
                    " text, put it in quotes"
                )
            if key in seen:
                raise InputError(f"line {line}: `{key}` is written twice; keep one of them")
            seen.add(key)
        return super().construct_mapping(node, deep)


_OTHER_BASE = re.compile(r"[-+]?0[0-9_]+|[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?")
"""what YAML 1.1 takes for a number in base 8 or 60: 030 is 24, 1:30 is 90"""
_FLOAT = r"[-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?"
_FORMS = {
    "bool": ("true|True|TRUE|false|False|FALSE", "tTfF"),
    "float": (rf"{_FLOAT}|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", "-+.0123456789"),
    "int": (_OTHER_BASE.pattern, "-+0123456789"),
    "word": ("yes|Yes|YES|no|No|NO|on|On|ON|off|Off|OFF", "yYnNoO"),
}
"""what is written without quotes and is no text, in place of YAML's own forms: by kind, all texts,
and the characters that they begin with"""
_REPLACED = ("bool", "float", "timestamp")
_Loader.yaml_implicit_resolvers = {
    sign: [(tag, form) for tag, form in known if tag.rpartition(":")[2] not in _REPLACED]
    for sign, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _kind, (_form, _signs) in _FORMS.items():
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_kind}", re.compile(rf"^(?:{_form})$"), list(_signs)
    )


def _whole(loader: _Loader, node: yaml.ScalarNode) -> int:
    """The number. Raises InputError for one that a person reads otherwise than YAML does, and
    ValueError for one of thousands of digits, which nothing could print."""
    if _OTHER_BASE.fullmatch(node.value):
        raise InputError(
            f"line {node.start_mark.line + 1}: {node.value:.20} would be read in base 8 or 60;"
            " write the number without a leading 0 or a colon, or a text in quotes"
        )
    number = loader.construct_yaml_int(node)
    str(number)
    return number


def _word(_: _Loader, node: yaml.ScalarNode) -> str:
    """Raises InputError: it may be a text, or true or false."""
    raise InputError(
        f"line {node.start_mark.line + 1}: {node.value} may be a text, or true or false: put it in"
        " quotes, or write true or false"
    )


_Loader.add_constructor("tag:yaml.org,2002:int", _whole)
_Loader.add_constructor("tag:yaml.org,2002:word", _word)


class _Writer(yaml.SafeDumper):
    """It puts into quotes what `_Loader` would not read as a text."""

    yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers


def as_yaml(tree: Any) -> str:
    """Write what `parse_yaml` reads as the same again."""
    return yaml.dump(tree, Dumper=_Writer, sort_keys=False, allow_unicode=True, width=100)


_MOST_NODES = 100_000
"""values of a recipe, with each alias written out"""


def _written_out(node: yaml.Node, known: dict[int, int]) -> int:
    """Return how many values a node has. Each is counted once, however many aliases name it."""
    if id(node) not in known:
        held: list[Any] = node.value if isinstance(node, yaml.CollectionNode) else []
        below = (each for item in held for each in (item if isinstance(item, tuple) else (item,)))
        known[id(node)] = 1 + sum(_written_out(each, known) for each in below)
    return known[id(node)]


def parse_yaml(text: str) -> Any:
    """Raises YAMLError, and InputError that names the line for a key or an alias that is wrong."""
    try:
        return yaml.load(text, _Loader)
    except ValueError as error:  # a number of thousands of digits
        raise yaml.YAMLError(str(error)) from None
    except RecursionError:
        raise yaml.YAMLError("it is nested too deeply") from None
    except yaml.MarkedYAMLError as error:
        raise yaml.YAMLError(yaml_fault(error)) from None


def option_value(option: str, text: str) -> Any:
    """The value of a command's option, which is YAML. Raises InputError that names the option."""
    try:
        return parse_yaml(text)
    except (yaml.YAMLError, InputError) as error:
        said = " ".join(str(error).split())
        raise InputError(f"{option}: the value is not YAML: {said}") from None


def shipped_recipes() -> list[str]:
    return sorted(p.stem for p in SHIPPED.glob("*.yaml"))


def is_recipe(name: str) -> bool:
    """Return whether a recipe has this name: a file, a shipped one, or a saved one."""
    return Path(name).expanduser().is_file() or name in recipe_names()


def saved_folder() -> Path:
    """Return the folder where this home keeps the recipes that `tributary save` saved."""
    return home() / "recipes"


def recipe_names() -> list[str]:
    """Return every name that is a recipe's: the shipped ones, then the saved ones."""
    return [*shipped_recipes(), *sorted(file.stem for file in saved_folder().glob("*.yaml"))]


def is_name(text: str) -> bool:
    """Return whether a text could name a recipe, and is no recipe itself."""
    return re.fullmatch(NAME_PATTERN, text.strip()) is not None


def recipe_path(name: str) -> Path:
    """The file of a recipe given as a path or as a shipped or saved name, e.g. `cpu-demo`."""
    path = Path(name).expanduser()
    if path.is_file():
        return path.resolve()
    for folder in (SHIPPED, saved_folder()):
        named = folder / f"{name}.yaml"
        if named.is_file():
            return named
    names = recipe_names()
    if path.is_dir():
        raise InputError(f"`{name}` is a folder; {_recipes_in(path)}")
    raise InputError(
        f"no recipe `{name}`: there is no such file, and it is none of the shipped or saved"
        f" recipes ({', '.join(names)})"
        f"{nearest(name, [*_files_in(path.parent), *names])}"
    )


def _files_in(folder: Path) -> list[str]:
    """Return the recipes that a folder may hold."""
    found = (file for end in ("yaml", "yml") for file in folder.glob(f"*.{end}"))
    return [str(file) for file in sorted(found) if file.is_file()]


def _recipes_in(folder: Path, most: int = 5) -> str:
    """Return what to name in place of a folder."""
    files = _files_in(folder)
    if not files:
        return "it holds no .yaml file; `tributary init` writes a recipe to begin with"
    more = f" and {len(files) - most} more" if len(files) > most else ""
    return f"name a recipe's file, of those in it: {', '.join(files[:most])}{more}"


def load_recipe(name: str, changes: Iterable[str] = ()) -> Recipe:
    """The validated recipe. Raises `InputError` that names each wrong field and its path."""
    path, written = read_recipe(name, changes)
    return validate_recipe(written.data, str(path), written)


def read_recipe(name: str, changes: Iterable[str] = ()) -> tuple[Path, Merged]:
    """The file of a recipe, and what it says with `changes`, which no longer depends on where it
    lies. Raises InputError."""
    path = recipe_path(name)
    written = _extended(path, ())
    written.changes += changes
    written.names_a_place_here = apply_changes(written.data, written.changes)
    return path, written


def recipe_from_tree(tree: Mapping[str, Any], changes: Iterable[str] = ()) -> Recipe:
    """Return a recipe that stands in no file. Raises InputError as `load_recipe` does."""
    data = _unshared(dict(tree))
    apply_changes(data, changes)
    return validate_recipe(data, "the given recipe")


def recipe_from_text(text: str, changes: Iterable[str] = ()) -> Recipe:
    """Return a recipe as `tributary check` prints it. Raises InputError as `load_recipe` does."""
    try:
        tree = parse_yaml(text)
    except (yaml.YAMLError, InputError) as error:
        raise InputError(f"the given recipe cannot be read as YAML: {error}") from None
    if not isinstance(tree, dict):
        names = recipe_names()
        raise InputError(
            f"recipe: `{text:.60}` is neither the name of a recipe ({', '.join(names)}) nor a"
            f" recipe in YAML{nearest(text, names)}"
        )
    return recipe_from_tree(tree, changes)


def parse_lines(text: str) -> list[str]:
    """Lines that say something: no empty ones, no comments."""
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def _extended(path: Path, above: Sequence[Path]) -> Merged:
    """Return what a file writes, merged into what it extends; `above` are the files that extend
    it."""
    if path in above:
        chain = " extends ".join(str(file) for file in (*above[above.index(path) :], path))
        raise InputError(f"{above[0]}: no recipe can extend itself: {chain}")
    data = _content(path)
    base = data.pop("extends", None)
    merged = Merged()
    if base is not None:
        merged = _extended(_extended_path(base, path), (*above, path))
        merged.data.pop("name", None)  # runs are found by it
        merged.files.pop(("name",), None)
    merged.add(data, str(path))
    return merged


def _extended_path(base: Any, path: Path) -> Path:
    """Return a file, relative to the one that extends it, or a shipped recipe."""
    if not isinstance(base, str) or not base:
        raise InputError(f"{path}: extends: give one file or one shipped recipe, not {base!r:.60}")
    beside_it = path.parent / Path(base).expanduser()
    try:
        return beside_it.resolve() if beside_it.is_file() else recipe_path(base)
    except InputError as error:
        raise InputError(f"{path}: extends: {error}") from None


def _content(path: Path) -> dict[str, Any]:
    """Return what a file says, with places of files that do not depend on where it lies."""
    text = read_text(path)
    try:
        data = parse_yaml(text)
    except (yaml.YAMLError, InputError) as error:
        raise InputError(f"{path}: cannot be read: {error}{not_a_recipe(path.name)}") from None
    if not isinstance(data, dict):
        held = "a list" if isinstance(data, list) else f"{data!r:.40}"
        what = "has nothing in it" if data is None else f"holds {held}"
        raise InputError(f"{path}: {what}; a recipe is a mapping of fields, see `tributary init`")
    if not {"extends", *Recipe.model_fields} & {*data}:
        named = ", ".join(map(str, data))
        what = f"has no field of a recipe, but {named or 'nothing':.80}{not_a_recipe(path.name)}"
        raise InputError(f"{path}: {what}; `tributary init` writes a recipe to begin with")
    data = _unshared(data)
    place_files(data, path.parent, recipe_names())
    return data


def validate_recipe(data: Mapping[str, Any], where: str, written: Merged | None = None) -> Recipe:
    """`written` says which file wrote a field that is wrong, if it is not `where`."""
    try:
        return _without_secrets(Recipe.model_validate(data), where)
    except ValidationError as error:
        lines = "\n".join(
            f"  {line}" + (f" (in {file})" if file not in ("", where) else "")
            for place, line in explained(error, Recipe).items()
            for file in [written.source_of(place) if written else ""]
        )
        raise InputError(f"{where}: the recipe has errors:\n{lines}") from None


def _without_secrets(recipe: Recipe, where: str) -> Recipe:
    """Raises InputError for a recipe with a token written out, before anything keeps it."""
    if found := list(written_secrets(recipe.model_dump(mode="json"))):
        raise InputError(f"{where}: the recipe has errors:\n" + "\n".join(f"  {f}" for f in found))
    return recipe


def apply_changes(data: dict[str, Any], changes: Iterable[str]) -> bool:
    """Apply changes `a.b=value` in place. Files that they name are seen from the folder where they
    were typed; whether any is, is returned. Raises InputError."""
    written: list[list[Any]] = []
    for change in changes:
        where = set_field(data, change)
        if any(other[: len(where)] == where for other in written):
            field = change.partition("=")[0]
            raise InputError(
                f"--set {change}: {field}, or a field below it, is set twice; keep one"
            )
        written.append(where)
    before = _unshared(data)
    place_files(data, Path.cwd(), recipe_names())
    return data != before


def set_field(data: dict[str, Any], change: str) -> list[Any]:
    """Apply `a.b=value` in place; the value is read as YAML. Missing parents are created. Return
    the field's place: keys, and positions in lists."""
    key, equals, text = change.partition("=")
    if not equals or not key:
        raise InputError(f"--set {change}: write it as field.path=value")
    if not text.strip():
        raise InputError(
            f"--set {change}: the value is empty; is a variable of the shell not set? `{key}=null`"
            " takes out what the recipe has there"
        )
    *parents, last = key.split(".")
    experts = data.get("experts") or {}
    if len(parents) > 2 and parents[0] == "experts" and parents[1] not in experts:
        hint = nearest(parents[1], experts) or f"; there are {', '.join(experts) or 'none'}"
        raise InputError(f"--set {change}: no expert is called `{parents[1]}`{hint}")
    place: list[Any] = []
    here: Any = data
    for part in parents:
        here = _child(here, part, change, place)
    value = option_value(f"--set {change}", text)
    if not isinstance(here, list | dict):
        raise InputError(f"--set {change}: `{'.'.join(parents)}` is a value, it has no fields")
    holder, last = _holder(here, last, change, place)
    holder[last] = value
    return place


def _child(here: Any, part: str, change: str, place: list[Any]) -> Any:
    if not isinstance(here, list | dict):
        raise InputError(f"--set {change}: `{part}` is below a value that has no fields")
    holder, key = _holder(here, part, change, place)
    if isinstance(here, dict) and here.get(part) is None:
        here[part] = {}
    return holder[key]


def _holder(here: Any, part: str, change: str, place: list[Any]) -> tuple[Any, Any]:
    """Return what holds a field, or an item of a list or the value under the item's key; and its
    key there. `place` grows by the way to it."""
    if isinstance(here, dict):
        place.append(part)
        return here, part
    at, key = entry_of(here, part, f"--set {change}")
    place += [at, key] if key else [at]
    return (here[at], key) if key else (here, at)


def _unshared(value: Any) -> Any:
    """Return a copy in which an alias (`*rl`) is a value of its own: a change reaches what it
    names.
    """
    if isinstance(value, dict):
        return {key: _unshared(item) for key, item in value.items()}
    return [_unshared(item) for item in value] if isinstance(value, list) else value
