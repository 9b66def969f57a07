"""The user's own files: read once, sent with each job, found there by their own names.

Hooks are copied to a folder named by their content, which comes at the *end* of the module path: a
user's folder named `tasks/` cannot shadow ours, and nothing beside the named files becomes
importable. Data files go to another such folder, where `data_path` finds them.
"""

from __future__ import annotations

import base64
import glob
import hashlib
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field, PlainSerializer

from infra.code.digest import digest_of
from infra.config import Config, PathBelow
from infra.errors import InputError
from infra.home import home, write_whole

MAX_BYTES = 64 << 20
"""limit for all files together: each job and each trainer rank gets a copy"""
_DATA = "TRIBUTARY_DATA"
"""environment variable with the folder of the data files: processes that a hook starts have it"""
HOOK_COPY = re.compile(r"/hooks/[0-9a-f]{16}/(.+)")
"""in the path of an installed hook, with its own name in it"""


Content = Annotated[
    bytes,
    BeforeValidator(lambda v: base64.b64decode(v) if isinstance(v, str) else v),
    PlainSerializer(lambda v: base64.b64encode(v).decode(), when_used="json"),
]


class UserFiles(Config):
    """Contents by relative path."""

    hooks: dict[PathBelow, Content] = Field(default_factory=dict)
    """e.g. `{"fourth.py": ..., "my_expert/__init__.py": ..., "my_expert/words.txt": ...}`"""
    data: dict[PathBelow, Content] = Field(default_factory=dict)
    """e.g. `{"words.txt": ..., "lists/verbs.txt": ...}`"""


@dataclass(frozen=True, slots=True)
class InstalledFiles:
    """Where this process has them."""

    folder: Path | None
    """that hooks are imported from; None without hooks"""
    data: Mapping[str, str] = field(default_factory=dict[str, str])
    """sha256 by the name that `data_path` takes"""


def data_path(name: str) -> Path:
    """Return where a hook finds a file that its recipe lists under `data:`.

    A file has its own name, one of a listed folder that folder's name and its path in there.
    Example: `data_path("words.txt")`, `data_path("lists/verbs.txt")`. Raises InputError.
    """
    folder = os.environ.get(_DATA)
    if folder and (Path(folder) / name).exists():
        return Path(folder) / name
    known = sorted(_names_below(Path(folder))) if folder else []
    raise InputError(
        f"data file {name!r} is not declared; list it under `data:` of the recipe. Declared: "
        f"{', '.join(known) or 'none'}"
    )


def read_hooks(hooks: Sequence[str], data: Sequence[str] = ()) -> UserFiles:
    """Their contents. Raises InputError for what is missing, or found twice under one name."""
    for line in [*same_names(hooks), *same_names(_found(data))]:
        raise InputError(line)
    named = [dict(_named(hooks, "hooks")), dict(_named(_found(data), "data"))]
    size = sum(file.stat().st_size for part in named for file in part.values())
    if size > MAX_BYTES:
        raise InputError(
            f"hooks and data are {size >> 20} MiB together, but only {MAX_BYTES >> 20} MiB can"
            " be sent "
            "with each job; put larger files where every host reads them, and give the hook their "
            "place and checksum as options"
        )
    code, other = ({name: file.read_bytes() for name, file in part.items()} for part in named)
    return UserFiles(hooks=code, data=other)


def same_names(paths: Sequence[str]) -> Iterator[str]:
    """Files or folders of which the second would take the first one's place."""
    first: dict[str, Path] = {}
    for path in map(Path, paths):
        name = path.stem if path.suffix == ".py" else path.name
        other = first.setdefault(name, path)
        if other.resolve() != path.resolve():
            yield f"{other} and {path} have the same name, {name}; rename one of them"


def install_hooks(files: UserFiles) -> InstalledFiles:
    """Write the files under their content's name; make hooks importable and data found."""
    folder = _installed("hooks", files.hooks)
    _forget_others(folder)
    if folder is not None and str(folder) not in sys.path:
        sys.path.append(str(folder))
    data = _installed("data", files.data)
    if data is None:
        os.environ.pop(_DATA, None)
    else:
        os.environ[_DATA] = str(data)
    return InstalledFiles(folder, _checksums(files.data))


def hooks_on_path() -> Path | None:
    """The folder that this process imports hooks from, as set up by the process that started it."""
    hooks = home() / "hooks"
    return next((Path(path) for path in sys.path if Path(path).parent == hooks), None)


def _found(patterns: Sequence[str]) -> list[str]:
    """The files and folders that match patterns."""
    return [path for p in patterns for path in (sorted(glob.glob(p, recursive=True)) or [p])]


def _named(paths: Sequence[str], what: str) -> Iterator[tuple[str, Path]]:
    """Files by the names that jobs know them by."""
    for path in map(Path, paths):
        files = [path] if path.is_file() else sorted(_files_below(path))
        if not files or (what == "hooks" and not any(f.suffix == ".py" for f in files)):
            kind = "Python file" if what == "hooks" else "file"
            raise InputError(f"{what}: {path} is missing or holds no {kind}")
        for file in files:
            yield file.relative_to(path.parent).as_posix(), file


def _files_below(folder: Path) -> Iterator[Path]:
    """All files except those that Python and editors create."""
    for file in folder.rglob("*"):
        parts = file.relative_to(folder).parts
        hidden = any(part.startswith(".") or part == "__pycache__" for part in parts)
        if file.is_file() and not hidden:
            yield file


def _names_below(folder: Path) -> Iterator[str]:
    return (f.relative_to(folder).as_posix() for f in folder.rglob("*") if f.is_file())


def _checksums(contents: Mapping[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(text).hexdigest() for name, text in sorted(contents.items())}


def _installed(kind: str, contents: Mapping[str, bytes]) -> Path | None:
    """The folder `$TRIBUTARY_HOME/<kind>/<digest>` with the files in it; None for none. What a part
    has written into one of them, or a crash has cut off, is put right."""
    if not contents:
        return None
    folder = home() / kind / digest_of(_checksums(contents))[:16]
    for relative, text in contents.items():
        file = folder / relative
        if not (file.is_file() and file.read_bytes() == text):
            write_whole(file, text)
    return folder


def _forget_others(folder: Path | None) -> None:
    """Drop what this process imported of other versions, of any home: a warm one outlives many
    recipes."""
    for path in [p for p in sys.path if _is_hook_outside(f"{p}/any.py", folder)]:
        sys.path.remove(path)
    for name, module in list(sys.modules.items()):
        if _is_hook_outside(getattr(module, "__file__", None) or "", folder):
            del sys.modules[name]
    importlib.invalidate_caches()


def _is_hook_outside(file: str, folder: Path | None) -> bool:
    """Say whether a file is an installed hook that is not in this folder."""
    return HOOK_COPY.search(file) is not None and folder not in Path(file).parents


def program_files(module: str) -> dict[str, bytes]:
    """Contents by name of a module, or of a package with all that lies in it; none of the empty
    name. Raises InputError for one that is not there."""
    if not module:
        return {}
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise InputError(f"program: no module {module!r}; list its file under `hooks`")
    origin = Path(spec.origin)
    if not spec.submodule_search_locations:
        return {origin.name: origin.read_bytes()}
    files = (file for file in sorted(origin.parent.rglob("*")) if file.is_file())
    kept = (file for file in files if "__pycache__" not in file.parts)
    return {file.relative_to(origin.parents[1]).as_posix(): file.read_bytes() for file in kept}
