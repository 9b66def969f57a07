"""What a stage is: the digest of its kind, spec, inputs and code."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import fsspec
from pydantic import BaseModel

from curricula.registry import BUILT_IN as CURRICULA
from engines.megatron.options import RESULT_NEUTRAL as MEGATRON_NEUTRAL
from engines.sglang.options import RESULT_NEUTRAL as SGLANG_NEUTRAL
from infra.digest import CodeIdentity, code_identity, digest_of
from infra.errors import InputError
from infra.hooks import source_file
from rewards.registry import BUILT_IN as REWARDS
from tasks.base import BaseSpec
from tasks.domain import HookSpec
from tasks.model_folder import expanded
from tasks.registry import module_of
from tasks.stage import StageSpec

NEUTRAL = {"megatron": MEGATRON_NEUTRAL, "sglang": SGLANG_NEUTRAL}
PARTS = {**CURRICULA, **REWARDS}
EDGE_BYTES = 1 << 20


def stage_code(spec: StageSpec, hook_files: Sequence[Path]) -> CodeIdentity:
    """Identity of the import closures of the body and of the parts that its spec names, and of the
    user's files."""
    names = sorted(set(_part_names(spec)))
    modules = [PARTS[name].partition(":")[0] for name in names if name in PARTS]
    files = [file for name in names if name not in PARTS and (file := source_file(name))]
    return code_identity([module_of(spec.kind), *modules], sorted({*hook_files, *files}))


def _part_names(value: Any) -> Iterator[str]:
    """Names of all curricula and rewards in a spec."""
    if isinstance(value, HookSpec):
        yield value.name
    elif isinstance(value, BaseModel):
        for field in type(value).model_fields:
            yield from _part_names(getattr(value, field))
    elif isinstance(value, list):
        for item in value:
            yield from _part_names(item)


def stage_digest(spec: StageSpec, inputs: Mapping[str, str], code: CodeIdentity) -> str:
    """sha256 hex; `inputs` are digests by role. No path, port or resource enters it."""
    return digest_of(
        {"kind": spec.kind, "spec": _content(spec), "inputs": dict(inputs), "code": code.hash}
    )


def _content(spec: StageSpec) -> dict[str, Any]:
    """The spec less what does not change the result: engine options that say only how fast or
    where, and an imported folder's path, in whose place stands what the folder holds."""
    content = _without_neutral(spec.model_dump(mode="json"))
    if isinstance(spec, BaseSpec) and spec.settings.folder is not None:
        content["settings"]["folder"] = folder_fingerprint(spec.settings.folder)
    return content


def _without_neutral(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_neutral(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: {k: v for k, v in item.items() if k not in NEUTRAL[key]}
        if key in NEUTRAL and isinstance(item, dict)
        else _without_neutral(item)
        for key, item in value.items()
    }


def folder_fingerprint(url: str) -> dict[str, list[Any]]:
    """Size and a hash of both ends of every file: cheap for 100 GB, changes with any retraining."""
    try:
        fs, root = fsspec.core.url_to_fs(expanded(url))
        paths = sorted(fs.find(root))
        if not paths:
            raise InputError(f"base.folder: {url} is missing or empty; give an HF model folder")
        return {os.path.relpath(p, root): _ends(fs, p) for p in paths}
    except InputError:
        raise
    except Exception as error:  # each file system has errors of its own
        raise InputError(f"base.folder: {url} cannot be read: {error}") from error


def _ends(fs: Any, path: str) -> list[Any]:
    size = int(fs.size(path))
    if not size:  # an empty range is an error to S3
        return [0, hashlib.sha256().hexdigest()]
    # By name: S3's second positional argument is a version.
    head = fs.cat_file(path, start=0, end=min(size, EDGE_BYTES))
    tail = fs.cat_file(path, start=max(0, size - EDGE_BYTES), end=size)
    return [size, hashlib.sha256(head + tail).hexdigest()]
