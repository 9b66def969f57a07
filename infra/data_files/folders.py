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
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias, cast

from fsspec.implementations.local import LocalFileSystem

from infra.data_files.heads import KINDS_READ, kind_of, suffix_of
from infra.errors import InputError
from infra.hub import MOST_FRONT, front_matter

Splits: TypeAlias = Mapping[str, Sequence[str]]
"""paths by the name of the split; one without a name is the only one"""
MOST_FILES = 100_000
"""below a folder, of any kind"""
MOST_NAMED = 8
"""subsets that a message names"""
_STATE = "state.json"
"""in a folder that `datasets` saved: which of its files hold the rows, in order"""
_NO_DATA = {"dataset_info.json", "dataset_infos.json", "dataset_dict.json", _STATE}
_NAMELESS = ("", ".")
"""stand for files that are of no subset, or of no split"""
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
_OUTSIDE = (
    "files: {pattern} names {path}, which is outside of it; give the file itself if it is meant"
)


@dataclass(frozen=True, slots=True)
class _Found:
    """What a folder holds."""

    subsets: Mapping[str, Splits]
    usual: str = "default"
    """the subset that is read where none is asked for"""
    is_declared: bool = True
    """whether a README or `datasets` says so; else names do"""


def files_of_folder(
    fs: Any, folder: str, rest: Sequence[str], pattern: str
) -> tuple[list[str], str]:
    """Their paths in order, and what was chosen where there was a choice. `rest`: the subset and
    the split that are asked for. Raises InputError where none or several are meant."""
    found = _found(fs, folder, pattern, is_named=bool(rest))
    subsets, top = found.subsets, pattern.rstrip("/").removesuffix("/".join(rest)).rstrip("/")
    if not subsets and not rest:
        raise InputError(f"files: {pattern} is a folder without a file that is read. {KINDS_READ}")
    having = {n: splits for n, splits in subsets.items() if not rest or rest[0] in (n, *splits)}
    if not having:
        raise InputError(f"files: no file matches {pattern}{_there(subsets)}")
    ways = {name: "/".join([_way(folder, top, name, found), *rest]) for name in having}
    subset, left, said = _chosen("subset", ways, list(rest), found.usual, pattern, subsets)
    splits = subsets[subset]
    if not splits:
        raise InputError(
            f"files: {pattern}: none of the files is there that README.md names for {subset}, or of"
            f" no kind that is read. {KINDS_READ}"
        )
    if not left and "" in splits and len(splits) > 1:
        names = ", ".join(posixpath.relpath(path, folder) for path in splits[""][:3])
        raise InputError(
            f"files: {pattern} has files of the split {' and '.join(filter(None, splits))}, and"
            f" others whose names say none ({names}); give the files themselves"
        )
    at = top if found.is_declared and len(subsets) == 1 else _way(folder, top, subset, found)
    ways = {split: f"{at}/{split}" for split in splits}
    split, left, of_splits = _chosen("split", ways, left, "train", pattern, splits)
    if left:
        raise InputError(
            f"files: no file matches {pattern}: {folder} has no {'/'.join(left)}{_there(subsets)}"
        )
    paths, said = list(splits[split]), [*said, *of_splits]
    _require_inside(fs, paths, folder, pattern)
    _refuse_kinds(fs, paths, folder, pattern, top)
    return paths, f"{pattern}: {'; '.join(said)}" if said else ""


def _chosen(
    what: str,
    ways: Mapping[str, str],
    asked: list[str],
    usual: str,
    pattern: str,
    every: Mapping[str, Any],
) -> tuple[str, list[str], list[str]]:
    """One of the names, what else is asked for, and in words that there was a choice. `ways`: what
    a person writes to get each that may be meant."""
    if asked and asked[0] in every:
        return asked[0], asked[1:], []
    if len(every) == 1:
        return next(iter(every)), asked, []
    if usual in ways:
        others = ", ".join(name or "the rest" for name in every if name != usual)
        return usual, asked, [f"the {what} {usual} is read, and not {others}"]
    named = [name for name in ways if name not in _NAMELESS]
    beside = [way for name, way in ways.items() if name in _NAMELESS]
    more = f" and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else ""
    listed = ", ".join(named[:MOST_NAMED]) + more + (", and files beside them" if beside else "")
    e_g = " or ".join([*(ways[name] for name in named[-1:]), *beside])
    raise InputError(f"files: {pattern} holds several {what}s: {listed}; say which, e.g. {e_g}")


def _way(folder: str, top: str, name: str, found: _Found) -> str:
    """Return what a person writes to get a subset of a folder, which is `top`."""
    if found.is_declared:
        return f"{top}/{name}"
    paths = [path for each in found.subsets[name].values() for path in each]
    common = posixpath.commonpath([posixpath.dirname(path) for path in paths])
    others = [each for other, each in found.subsets.items() if other != name]
    every = [path for splits in others for each in splits.values() for path in each]
    if any(path.startswith(f"{common}/") for path in every):  # its first file stands for them
        common = paths[0]
    return posixpath.join(top, posixpath.relpath(common, folder)).removesuffix("/.")


def _there(subsets: Mapping[str, Splits]) -> str:
    """The names of subsets and splits that a folder has, for the end of a sentence."""
    splits = dict.fromkeys(split for each in subsets.values() for split in each)
    names = [name for name in [*subsets, *splits] if name not in _NAMELESS]
    return f"; there are {', '.join(names)}" if names else ""


def _require_inside(fs: Any, paths: Sequence[str], folder: str, pattern: str) -> None:
    """Raises InputError for a file that the folder's own lists name, or a link in it leads to, and
    that is not in it: whoever made the folder chose which file of this machine is read. A copy in
    the Hub's cache links to the files beside it."""
    inside = posixpath.join(posixpath.normpath(folder), "")
    here = Path(folder).resolve() if isinstance(fs, LocalFileSystem) else None
    for path in paths:
        if not posixpath.normpath(path).startswith(inside):
            raise InputError(_OUTSIDE.format(pattern=pattern, path=path))
        if here is None:
            continue
        in_cache = [up.parent / "blobs" for up in (here, *here.parents) if up.name == "snapshots"]
        if not {here, *in_cache} & {*(target := Path(path).resolve()).parents}:
            link = f"{posixpath.relpath(path, folder)}, a link to {target}"
            raise InputError(_OUTSIDE.format(pattern=pattern, path=link))


def _refuse_kinds(fs: Any, paths: Sequence[str], folder: str, pattern: str, top: str) -> None:
    """Raises InputError for files of several kinds, and says how to get those of one."""
    kinds = sorted({suffix_of(path) for path in paths})
    if len(kinds) < 2:
        return
    first = [path for path in paths if suffix_of(path) == kinds[0]]
    is_matched = sorted(fs.glob(f"{_literal(folder)}/*{kinds[0]}")) == sorted(first)
    way = f"*{kinds[0]}" if is_matched else posixpath.relpath(first[0], folder)
    raise InputError(
        f"files: {pattern} holds files of several kinds ({', '.join(kinds)}), perhaps the same"
        f" rows; give those of one, e.g. {top}/{way}"
    )


def _found(fs: Any, folder: str, pattern: str, *, is_named: bool) -> _Found:
    """`is_named`: a name behind the folder's path asks for one, which may be a mistake; then files
    of folders within count only if a README says so."""
    if fs.isfile(f"{folder}/{_STATE}"):
        return _Found({"": {"": _saved(fs, folder)}})
    parts = sorted(posixpath.dirname(path) for path in fs.glob(f"{_literal(folder)}/*/{_STATE}"))
    if parts:
        _refuse_beside(fs, folder, parts, pattern)
        return _Found({"": {posixpath.basename(part): _saved(fs, part) for part in parts}})
    if declared := list(_declared(fs, folder, pattern)):
        usual = next((name for name, is_usual, _ in declared if is_usual), "default")
        return _Found({name: splits for name, _, splits in declared}, usual)
    found = _by_names(fs, folder, depth=3 if is_named else None)
    kept = {name: splits for name, splits in found.items() if name == "." or not is_named}
    return _Found(kept, is_declared=False)


def _refuse_beside(fs: Any, folder: str, parts: Sequence[str], pattern: str) -> None:
    """Raises InputError for other files beside what `datasets` saved in folders within: whose rows
    are meant is not known."""
    inside = tuple(f"{part}/" for part in parts)
    found = _by_names(fs, folder, depth=None).values()
    paths = [path for splits in found for each in splits.values() for path in each]
    beside = [posixpath.relpath(path, folder) for path in paths if not path.startswith(inside)]
    if beside:
        saved = ", ".join(posixpath.basename(part) for part in parts)
        raise InputError(
            f"files: {pattern} holds what `datasets` saved ({saved}), and other files"
            f" ({', '.join(beside[:3])}); give one of them, e.g."
            f" {pattern.rstrip('/')}/{posixpath.basename(parts[0])} or"
            f" {pattern.rstrip('/')}/{beside[0]}"
        )


def _saved(fs: Any, folder: str) -> list[str]:
    """The files of a folder that `datasets` wrote with `save_to_disk`."""
    try:
        state = json.loads(fs.cat_file(f"{folder}/{_STATE}", 0, MOST_FRONT))
        return [f"{folder}/{each['filename']}" for each in state["_data_files"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InputError(
            f"files: {folder}/{_STATE} lists no data files; copy the folder again"
        ) from None


def _declared(fs: Any, folder: str, pattern: str) -> Iterator[tuple[str, bool, Splits]]:
    """Each subset that the README of a Hub repository declares, whether it is the default, and its
    splits."""
    if not fs.isfile(f"{folder}/README.md"):
        return
    text = fs.cat_file(f"{folder}/README.md", 0, MOST_FRONT).decode(errors="replace")
    try:
        found = front_matter(text)
    except ValueError as error:
        raise InputError(f"files: {folder}/README.md: its first part is no YAML: {error}") from None
    configs = found.get("configs") if isinstance(found, dict) else None
    for config in cast("list[Any]", configs) if isinstance(configs, list) else []:
        if not isinstance(config, dict) or "data_files" not in config:
            continue
        config = cast("dict[str, Any]", config)
        written = dict(_patterns(config["data_files"]))
        below = str(config.get("data_dir") or "")
        for path in map(str, (below, *chain(*written.values()))):
            if path.startswith("/") or ".." in path.split("/"):  # a whole disk may match it
                raise InputError(_OUTSIDE.format(pattern=pattern, path=path))
        top = posixpath.join(folder, below).rstrip("/")
        splits = {name: _globbed(fs, top, each) for name, each in written.items()}
        name = str(config.get("config_name", "default"))
        is_usual = config.get("default") is True
        yield name, is_usual, {split: paths for split, paths in splits.items() if paths}


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
    for path in _files_below(fs, folder, depth):
        below = posixpath.relpath(path, folder)
        *above, name = below.split("/")
        if name in _NO_DATA or not kind_of(name) or any(p.startswith(".") for p in (*above, name)):
            continue
        said = [word for part in (*above, name) if (word := _word(part))]
        subset = "/".join(part for part in above if part != "data" and not _word(part))
        subsets[subset][said[-1] if said else ""].append(path)
    return {subset or ".": splits for subset, splits in subsets.items()}


def _files_below(fs: Any, folder: str, depth: int | None) -> list[str]:
    """In order. Raises InputError for a folder of this machine that holds more than any data has:
    a slip of the pen would have the whole disk listed."""
    if not isinstance(fs, LocalFileSystem):
        return sorted(fs.find(folder, maxdepth=depth))
    found: list[str] = []
    for where, _, names in fs.walk(folder, maxdepth=depth):
        found += (f"{where}/{name}" for name in names)
        if len(found) > MOST_FILES:
            raise InputError(
                f"files: {folder} holds more than {MOST_FILES:,} files; give the folder of the"
                " data, or a pattern, e.g. DATA/*.parquet"
            )
    return sorted(found)


def _word(name: str) -> str:
    found = _WORD.findall(name.lower())
    return _WORDS[found[-1]] if found else ""


def _literal(path: str) -> str:
    """Return a path in which nothing is a pattern."""
    return re.sub(r"([*?\[])", r"[\1]", path)
