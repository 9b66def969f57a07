"""The data files of a folder: one that `datasets` saved, a copy of a Hub repository, or any other.

A folder may hold several subsets, and each of them several splits. One of each is read: the only
one, the subset `default`, the split `train`; or what the path says, as FOLDER/SUBSET/SPLIT,
FOLDER/SUBSET or FOLDER/SPLIT, whether or not there is a folder of that name.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias, cast

import yaml

from infra.data_files.kinds import KINDS_READ, kind_of, suffix_of
from infra.errors import InputError

Splits: TypeAlias = Mapping[str, Sequence[str]]
"""paths by the name of the split; one without a name is the only one"""
_STATE = "state.json"
"""in a folder that `datasets` saved: which of its files hold the rows, in order"""
_NO_DATA = {"dataset_info.json", "dataset_infos.json", "dataset_dict.json", _STATE}
_WORDS = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
    "testing": "test",
    "eval": "test",
    "evaluation": "test",
}
"""by which `datasets` knows splits"""
_WORD = re.compile(rf"(?:^|[-_. 0-9])({'|'.join(_WORDS)})(?=$|[-_. 0-9])")
_FRONT = re.compile(r"\A---\s*\n(.*?)\n---\s*$", re.DOTALL | re.MULTILINE)


def files_of_folder(
    fs: Any, folder: str, rest: Sequence[str], pattern: str
) -> tuple[list[str], str]:
    """Their paths in order, and what was chosen where there was a choice. `rest`: the subset and
    the split that are asked for. Raises InputError where none or several are meant."""
    subsets = _subsets(fs, folder, is_named=bool(rest))
    if not subsets and not rest:
        raise InputError(f"files: {pattern} is a folder without a file that is read. {KINDS_READ}")
    if rest and not any(rest[0] in (name, *splits) for name, splits in subsets.items()):
        raise InputError(f"files: no file matches {pattern}")
    subset, left, said = _chosen("subset", list(subsets), list(rest), "default", pattern)
    splits = subsets[subset]
    if not splits:
        raise InputError(
            f"files: {pattern}: none of the files is there that README.md names for {subset}, or of"
            f" no kind that is read. {KINDS_READ}"
        )
    split, left, of_splits = _chosen("split", list(splits), left, "train", pattern)
    if left:
        raise InputError(f"files: no file matches {pattern}: {folder} has no {'/'.join(left)}")
    if not rest and "" in splits and len(splits) > 1:
        names = ", ".join(posixpath.relpath(path, folder) for path in splits[""][:3])
        raise InputError(
            f"files: {pattern} has files of the split {max(splits)}, and others whose names say"
            f" none ({names}); give the files themselves"
        )
    paths = list(splits[split])
    kinds = sorted({suffix_of(path) for path in paths})
    if len(kinds) > 1:
        raise InputError(
            f"files: {pattern} holds files of several kinds ({', '.join(kinds)}), perhaps the same"
            f" rows; give those of one, e.g. {pattern.rstrip('/')}/*{kinds[0]}"
        )
    said += of_splits
    return paths, f"{pattern}: {'; '.join(said)}" if said else ""


def _chosen(
    what: str, names: list[str], asked: list[str], usual: str, pattern: str
) -> tuple[str, list[str], list[str]]:
    """One of the names, what else is asked for, and in words that there was a choice."""
    if asked and asked[0] in names:
        return asked[0], asked[1:], []
    if len(names) == 1:
        return names[0], asked, []
    if usual in names and not asked:
        others = ", ".join(name or "the rest" for name in names if name != usual)
        return usual, asked, [f"the {what} {usual} is read, and not {others}"]
    raise InputError(
        f"files: {pattern} holds several {what}s: {', '.join(names)}; say which, e.g."
        f" {pattern.rstrip('/')}/{names[-1]}"
    )


def _subsets(fs: Any, folder: str, *, is_named: bool) -> dict[str, Splits]:
    """`is_named`: a name behind the folder's path asks for one, which may be a mistake; then files
    of folders within count only if a README says so."""
    if fs.isfile(f"{folder}/{_STATE}"):
        return {"": {"": _saved(fs, folder)}}
    parts = sorted(posixpath.dirname(path) for path in fs.glob(f"{_literal(folder)}/*/{_STATE}"))
    if parts:
        return {"": {posixpath.basename(part): _saved(fs, part) for part in parts}}
    if declared := dict(_declared(fs, folder)):
        return declared
    found = _by_names(fs, folder, depth=2 if is_named else None)
    return {name: splits for name, splits in found.items() if name == "." or not is_named}


def _saved(fs: Any, folder: str) -> list[str]:
    """The files of a folder that `datasets` wrote with `save_to_disk`."""
    state = json.loads(fs.cat_file(f"{folder}/{_STATE}"))
    return [f"{folder}/{each['filename']}" for each in state["_data_files"]]


def _declared(fs: Any, folder: str) -> Iterator[tuple[str, Splits]]:
    """The splits that the README of a Hub repository declares. The default subset has that name."""
    if not fs.isfile(f"{folder}/README.md"):
        return
    front = _FRONT.match(fs.cat_file(f"{folder}/README.md").decode(errors="replace"))
    try:
        found = yaml.safe_load(front.group(1)) if front else None
    except yaml.YAMLError as error:
        said = " ".join(str(error).split())
        raise InputError(f"files: {folder}/README.md: its first part is no YAML: {said}") from None
    configs = found.get("configs") if isinstance(found, dict) else None
    for config in cast("list[Any]", configs) if isinstance(configs, list) else []:
        if not isinstance(config, dict) or "data_files" not in config:
            continue
        config = cast("dict[str, Any]", config)
        top = posixpath.join(folder, str(config.get("data_dir") or "")).rstrip("/")
        splits = {name: _globbed(fs, top, each) for name, each in _patterns(config["data_files"])}
        name = "default" if config.get("default") else str(config.get("config_name", "default"))
        yield name, {name: paths for name, paths in splits.items() if paths}


def _patterns(written: Any) -> Iterator[tuple[str, list[str]]]:
    """By split. `data_files` is a pattern, a list of them, or objects of `split` and `path`."""
    entries = cast("list[Any]", written if isinstance(written, list) else [written])
    plain = [each for each in entries if isinstance(each, str)]
    if plain:
        yield "train", plain
    for each in entries:
        if isinstance(each, dict):
            each = cast("dict[str, Any]", each)
            path = each.get("path", [])
            yield str(each.get("split", "train")), [path] if isinstance(path, str) else path


def _globbed(fs: Any, folder: str, patterns: Sequence[str]) -> list[str]:
    found: dict[str, None] = {}
    for pattern in patterns:
        paths = sorted(fs.glob(f"{_literal(folder)}/{pattern}"))
        found.update(dict.fromkeys(path for path in paths if kind_of(path) and fs.isfile(path)))
    return list(found)


def _by_names(fs: Any, folder: str, *, depth: int | None) -> dict[str, Splits]:
    """Subsets by the folders within, splits by the words in names that `datasets` knows them by."""
    subsets: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for path in sorted(fs.find(folder, maxdepth=depth)):
        below = posixpath.relpath(path, folder)
        *above, name = below.split("/")
        if name in _NO_DATA or not kind_of(name) or any(p.startswith(".") for p in (*above, name)):
            continue
        said = [word for part in (*above, name) if (word := _word(part))]
        subset = "/".join(part for part in above if part != "data" and not _word(part))
        subsets[subset][said[-1] if said else ""].append(path)
    return {subset or ".": splits for subset, splits in subsets.items()}


def _word(name: str) -> str:
    found = _WORD.findall(name.lower())
    return _WORDS[found[-1]] if found else ""


def _literal(path: str) -> str:
    """A path in which nothing is a pattern."""
    return re.sub(r"([*?\[])", r"[\1]", path)
