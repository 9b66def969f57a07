"""What a stage is: the digest of its kind, spec, inputs and code.

Results of a part of a stage are stored for other stages that have the same part, and go with the
model's artifact: ROOT/results/<model's digest12>/<digest12>.json.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec

from curricula.prompt_files.spec import PromptFiles, PromptSource
from engines.families.common.model_config import parse_config
from engines.families.common.registry import family_module
from engines.megatron.options import RESULT_NEUTRAL as MEGATRON_NEUTRAL
from engines.megatron.spec import TrainerSettings
from engines.sglang.server_options import RESULT_NEUTRAL as SGLANG_NEUTRAL
from engines.sglang.spec import FleetSpec
from infra.code.digest import NeutralKeys, content_of, digest_of
from infra.code.identity import CodeIdentity, LookedUp, code_identity
from infra.config import Config
from infra.data_files.files import files_below, fingerprint
from infra.errors import InputError
from infra.home import SOURCE_ROOT, seal, unseal
from infra.hub import hub_name, is_hub_name, pinned
from infra.store.removal import RESULTS
from infra.store.store import Store
from infra.user_files import InstalledFiles
from tasks.base.spec import BaseSettings
from tasks.domain import CurriculumSpec
from tasks.lm_eval.spec import LmEvalSettings
from tasks.message_files.spec import RowFiles
from tasks.model_folder.folder_report import template_text
from tasks.model_folder.model_files import expanded
from tasks.stage import StageSpec
from tasks.stage_kinds import module_of, name_of

NEUTRAL: NeutralKeys = {
    (TrainerSettings, "megatron"): MEGATRON_NEUTRAL,
    (FleetSpec, "sglang"): SGLANG_NEUTRAL,
}
EDGE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class StageIdentity:
    """All that makes a stage this one and no other."""

    kind: str
    content: Mapping[str, Any]
    """its settings that change the result"""
    inputs: Mapping[str, str]
    """digests by role"""
    code: CodeIdentity
    again: str = ""
    """the run that was told to run it again; empty for the result that every run finds"""

    @property
    def digest(self) -> str:
        """sha256 hex. No path, port or resource enters it."""
        parts = {
            "kind": self.kind,
            "spec": self.content,
            "inputs": dict(self.inputs),
            "code": self.code.hash,
        }
        return digest_of(parts | ({"again": self.again} if self.again else {}))


def stage_identity(
    spec: StageSpec,
    inputs: Mapping[str, str],
    user: InstalledFiles | None = None,
    *,
    root: Path = SOURCE_ROOT,
    looked_up: LookedUp | None = None,
) -> StageIdentity:
    """`inputs` are digests by role. Raises InputError for a hook that is not Python, or an
    imported folder that cannot be read."""
    code = stage_code(spec, user, root=root, looked_up=looked_up)
    return StageIdentity(spec.kind, spec_content(spec), dict(inputs), code)


def stage_code(
    spec: StageSpec,
    user: InstalledFiles | None = None,
    *,
    root: Path = SOURCE_ROOT,
    looked_up: LookedUp | None = None,
) -> CodeIdentity:
    """Identity of what the stage runs: its body, the parts that its spec names, the family of the
    model that it imports, and what these import. Raises InputError for a hook that is not Python.

    Of all stages only `base` names a family: the others are made from what it gives them."""
    parts = {part for part in _parts(spec) if ":" in part}
    if spec.imported_folder is not None:
        parts |= _family_modules(spec.imported_folder)
    return code_identity(
        [f"{module_of(name_of(spec))}:run", *sorted(parts)],
        settings=sorted(set(_settings(spec))),
        hooks=user.folder if user else None,
        data=user.data if user else None,
        root=root,
        looked_up=looked_up,
    )


def _parts(value: Any) -> Iterator[str]:
    """`module:attribute` of all parts that a spec's settings choose."""
    if isinstance(value, Config):
        yield from value.parts
        for field in type(value).model_fields:
            yield from _parts(getattr(value, field))
    elif isinstance(value, list):
        for item in value:
            yield from _parts(item)


def _settings(value: Any) -> Iterator[str]:
    """`module:Class` of a spec and of all settings in it."""
    if isinstance(value, Config):
        yield f"{type(value).__module__}:{type(value).__qualname__}"
        for field in type(value).model_fields:
            yield from _settings(getattr(value, field))
    elif isinstance(value, list):
        for item in value:
            yield from _settings(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _settings(item)


def _family_modules(url: str) -> set[str]:
    """Name the family's modules of the model in the folder; none where the folder holds no model
    that we know, which is for the stage itself to refuse."""
    try:
        fs, root = fsspec.core.url_to_fs(expanded(url))
        return {family_module(parse_config(fs.cat_file(f"{root.rstrip('/')}/config.json")))}
    except (FileNotFoundError, InputError):
        return set()
    except Exception as error:  # each file system has errors of its own
        raise _unreadable(url, error) from error


def spec_content(spec: StageSpec) -> dict[str, Any]:
    """The spec's settings that change the result; in place of the path of an imported folder, and
    of the user's own files, stands what they hold."""
    content = content_of(spec, NEUTRAL)
    folder = spec.imported_folder or spec.served_folder
    if folder is not None:
        field = "base.folder" if spec.served_folder is None else "served.model"
        content["settings"]["folder"] = folder_fingerprint(folder, field)
    _put_file_contents(spec, content)
    return content


def _put_file_contents(value: Any, content: Any) -> None:
    """In place of the names of the user's own files, what they hold."""
    if isinstance(value, RowFiles | PromptSource):
        content["files"] = fingerprint(value.files)
    elif isinstance(value, BaseSettings) and value.template is not None:
        content["template"] = template_text(value.template)
    elif isinstance(value, LmEvalSettings):
        content["folder"] = files_below(value.folder) if value.folder else {}
    elif isinstance(value, CurriculumSpec):
        if value.name == "files":
            options = PromptFiles.model_validate(value.options)
            content["options"] = content_of(options, NEUTRAL)
            _put_file_contents(options, content["options"])
    elif isinstance(value, Config):
        for name in content.keys() & type(value).model_fields.keys():
            _put_file_contents(getattr(value, name), content[name])
    elif isinstance(value, list):
        for item, its in zip(value, content, strict=True):
            _put_file_contents(item, its)


def folder_fingerprint(url: str, field: str = "base.folder") -> dict[str, Any]:
    """Size and a hash of both ends of every file: cheap for 100 GB, changes with any retraining.
    Of a model on a hub, its commit."""
    if is_hub_name(url):
        name = hub_name(pinned(url))
        return {"hub": name.repo, "commit": name.revision}
    try:
        fs, root = fsspec.core.url_to_fs(expanded(url))
        paths = sorted(fs.find(root))
        if not paths:
            raise InputError(f"{field}: {url} is missing or empty; give an HF model folder")
        return {os.path.relpath(p, root): _ends(fs, p) for p in paths}
    except InputError:
        raise
    except Exception as error:
        raise _unreadable(url, error, field) from error


def _unreadable(url: str, error: Exception, field: str = "base.folder") -> InputError:
    return InputError(f"{field}: {url} cannot be read: {error}")


def _ends(fs: Any, path: str) -> list[Any]:
    size = int(fs.size(path))
    if not size:  # an empty range is an error to S3
        return [0, hashlib.sha256().hexdigest()]
    # By name: S3's second positional argument is a version.
    head = fs.cat_file(path, start=0, end=min(size, EDGE_BYTES))
    tail = fs.cat_file(path, start=max(0, size - EDGE_BYTES), end=size)
    return [size, hashlib.sha256(head + tail).hexdigest()]


@dataclass(frozen=True, slots=True)
class StoredResults:
    """A stage's view of them. `code` is what the stage runs."""

    store: Store
    code: CodeIdentity

    def read(self, spec: StageSpec, inputs: Mapping[str, str], model: str) -> Any:
        """Read a result; None where there is none, and where it is damaged: it is made again."""
        digest = self._digest(spec, inputs)
        try:
            found = json.loads(unseal(self.store.read(_path(model, digest))))
        except (FileNotFoundError, ValueError):
            return None
        return found["results"] if found["digest"] == digest else None

    def keep(self, spec: StageSpec, inputs: Mapping[str, str], model: str, results: Any) -> None:
        """`results`: anything that JSON can write."""
        digest = self._digest(spec, inputs)
        text = json.dumps({"digest": digest, "results": results})
        self.store.write(_path(model, digest), seal(text))

    def _digest(self, spec: StageSpec, inputs: Mapping[str, str]) -> str:
        """Return it as a stage of this part alone would have it."""
        return StageIdentity(spec.kind, spec_content(spec), dict(inputs), self.code).digest


def _path(model: str, digest: str) -> str:
    return f"{RESULTS}/{model[:12]}/{digest[:12]}.json"
