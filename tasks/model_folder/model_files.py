"""The files of a model folder, wherever it is: read by name, by range, or copied."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from infra.data_files.packaged import is_packaged
from infra.errors import InputError
from infra.home import home
from infra.hub import fsspec_url, is_hub_name, named_without_prefix
from infra.secret_references import plain_address
from infra.store.store import explain
from tasks.model_folder.gguf_folder import gguf_folder, is_gguf

_WANTED = (
    "give a folder with config.json, tokenizer.json and safetensors, a GGUF file, or a model of the"
    " Hub as hf:ORG/NAME"
)


class ModelFiles:
    """Names and sizes of the files in the folder at `url` (a path or any fsspec URL).

    Raises InputError for a folder that a person has to correct, StorageError for one that is out
    of reach from here (no credentials, no connection).
    """

    def __init__(self, url: str) -> None:
        import fsspec

        from engines.chat.chat_folder import check_sizes

        self.url = url
        place = expanded(url)
        try:
            # Listings must be true: a folder is often corrected and looked at again.
            self._fs, self._root = fsspec.core.url_to_fs(place, use_listings_cache=False)
        except (ValueError, ImportError, OSError) as error:
            raise InputError(
                f"{url} cannot be opened: {error}; give a path, or a URL such as s3://bucket/model"
            ) from error
        self.sizes = {str(e["name"]).rsplit("/", 1)[-1]: int(e["size"]) for e in self._listed()}
        check_sizes(self.sizes, f"{url.rstrip('/')}/")
        self._check_links()

    def read(self, name: str) -> bytes:
        """Return a whole file."""
        with self._explained(name):
            return self._fs.cat_file(self._path(name))

    def read_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> list[bytes]:
        """Bytes `start` to `end` of each (name, start, end), side by side where that is faster."""
        names, starts, ends = ([list(part) for part in zip(*ranges, strict=True)]) or ([], [], [])
        with self._explained(", ".join(dict.fromkeys(names))):
            return self._fs.cat_ranges(
                [self._path(name) for name in names], starts, ends, on_error="raise"
            )

    def copy(self, name: str, folder: Path) -> None:
        with self._explained(name):
            self._fs.get_file(self._path(name), str(folder / name))

    @contextmanager
    def on_this_machine(self, names: Sequence[str]) -> Generator[Path]:
        """A local folder with these files, if they exist: the folder itself or a temporary copy."""
        local = local_folder(self.url)
        if local is not None:
            yield local
            return
        with TemporaryDirectory() as copy:
            for name in names:
                if name in self.sizes:
                    self.copy(name, Path(copy))
            yield Path(copy)

    def _listed(self) -> list[dict[str, Any]]:
        try:
            entries: list[dict[str, Any]] = self._fs.ls(self._root, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            raise InputError(f"{self.url} is missing; {_WANTED}") from None
        except PermissionError as error:
            if self._is_local:
                raise InputError(f"{self.url} cannot be read: {_denied(error)}") from None
            raise explain(error, "look at", self.url) from error
        except Exception as error:
            raise explain(error, "look at", self.url) from error
        files = [entry for entry in entries if entry["type"] != "directory"]
        if [entry["name"] for entry in files] == [self._root]:
            raise InputError(f"{self.url} is a file; {_WANTED}")
        if not files:
            raise InputError(f"{self.url} is empty; {_WANTED}")
        return files

    def _check_links(self) -> None:
        """Raises InputError for a pipe or a device, which has no end, and for a link that leads out
        of the folder: what it leads to would be copied into the model's artifact, and be published
        with it. Weights are looked at, and may be anywhere."""
        folder = Path(self._root).resolve() if self._is_local else None
        if folder is None:
            return
        cache = folder.parents[1] / "blobs" if folder.parent.name == "snapshots" else folder
        for name in self.sizes:
            place = folder / name
            if place.exists() and not (place.is_file() or place.is_dir()):
                raise InputError(f"{self.url.rstrip('/')}/{name}: is no file; remove it")
            kept = (folder / name).resolve().parents
            if not (name.endswith(".safetensors") or folder in kept or cache in kept):
                raise InputError(
                    f"{self.url.rstrip('/')}/{name}: is a link that leads out of the folder; put"
                    " the file itself there (cp -L), if it belongs to the model"
                )

    @functools.cached_property
    def _is_local(self) -> bool:
        return local_folder(self.url) is not None

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"

    @contextmanager
    def _explained(self, names: str) -> Generator[None]:
        """Turn the file system's errors into ours."""
        try:
            yield
        except FileNotFoundError:
            raise InputError(f"{names}: is missing; copy the model folder again") from None
        except OSError as error:
            if self._is_local:
                why = _denied(error) if isinstance(error, PermissionError) else error.strerror
                raise InputError(f"{names}: cannot be read: {why}") from None
            raise explain(error, "read", f"{self.url}/{names}") from error
        except Exception as error:
            raise explain(error, "read", f"{self.url}/{names}") from error


def _denied(error: OSError) -> str:
    return f"{error.strerror}; let this user read it (chmod)"


def expanded(folder: str) -> str:
    """Return what fsspec opens: `~` and environment variables filled in, a hub's revision made a
    commit, a GGUF file made a folder.

    Raises InputError, StorageError for a model that is not there."""
    if is_hub_name(folder):
        return fsspec_url(folder)
    if is_gguf(folder):
        return str(gguf_folder(folder))
    return _after_a_move(os.path.expanduser(os.path.expandvars(plain_address(folder))))


_ARTIFACT = re.compile(r"/store/artifacts/[^/]+/[0-9a-f]{12}/a\d+(?=/*$)")


def _after_a_move(place: str) -> str:
    """Where this home has an artifact that a recipe names where the home was before it was moved;
    else the place as it is. What an artifact holds follows from the digits in its name."""
    part, local = _ARTIFACT.search(place), place.removeprefix("file://")
    if part is None or "://" in local or Path(local).exists():
        return place
    now = home() / part[0].lstrip("/")
    return str(now) if now.is_dir() else place


def is_dist_folder(names: Collection[str]) -> bool:
    """Return whether a folder with these files is one of Megatron's `dist_checkpointing`."""
    return {"metadata.json", ".metadata"} <= {*names}


def local_folder(folder: str) -> Path | None:
    """Return where the folder is on this machine; None for one that is elsewhere."""
    if is_hub_name(folder):
        return None
    path = expanded(folder)
    if path.startswith("file://"):
        return Path(path.removeprefix("file://"))
    return None if "://" in path else Path(path)


def model_beside(model: str, recipe: Path) -> str:
    """The place of a model: `beside`, or `hf:ORG/NAME` for a bare name of the hub."""
    bare = "" if is_gguf(model) else named_without_prefix(model, recipe)
    return bare or beside(model, recipe)


def template_beside(template: str, recipe: Path) -> str:
    """Return a file's path made absolute, as `beside` does; the name of a template that ships
    stays.
    """
    return beside(template, recipe) if {"/", "."} & {*template} else template


def beside(folder: str, recipe: Path) -> str:
    """Return a relative path made absolute: it is meant relative to the recipe's folder."""
    if "://" in folder or folder.startswith("$") or is_hub_name(folder) or is_packaged(folder):
        return folder
    # Links stay: in the cache of a hub they have the names, and what they lead to has none.
    return os.path.abspath(recipe / Path(folder).expanduser())
