"""What is written about an artifact: the manifest in the store, and the small record of it."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field

from infra.config import Found
from infra.cuda import gpu_name
from infra.store.store import FileRecord

# Those whose version can change numbers.
_LIBRARIES = (
    "torch", "megatron-core", "sglang", "transformers", "tokenizers", "safetensors", "numpy",
    "ray", "math-verify", "reasoning-gym",
)  # fmt: skip


class StageWarning(Found):
    """What a person must know before they trust a stage's result: it trained on little, say.

    Example: what="2 of 3 steps made no update", cause="all groups had equal rewards", advice="draw
    harder problems", figures={"steps": 3, "skipped": 2}
    """

    # A figure may be NaN; JSON has no word for it.
    model_config = ConfigDict(ser_json_inf_nan="strings")

    what: str
    cause: str = ""
    advice: str = ""
    figures: dict[str, float] = Field(default_factory=dict)

    def __str__(self) -> str:
        said = f"{self.what}: {self.cause}" if self.cause else self.what
        return f"{said}. {self.advice[:1].upper()}{self.advice[1:]}" if self.advice else said


class _Stored(Found):
    # A metric may be NaN; JSON has no word for it.
    model_config = ConfigDict(ser_json_inf_nan="strings")


class ArtifactRecord(_Stored):
    """What a stage hands to the next ones.

    Example: kind="sft", digest="3f09...", url="file:///data/store/artifacts/sft/3f09c2b1a7d4/a1",
    metrics={"loss": 0.41}, mlflow_run_id="9a1b...", seconds=12.5
    """

    kind: str
    digest: str
    """full sha256"""
    url: str
    """the folder that contains the files"""
    metrics: dict[str, float] = Field(default_factory=dict)
    mlflow_run_id: str = ""
    seconds: float = 0.0
    """how long the attempt that made it took"""
    created: float = 0.0
    """Unix time"""
    warnings: list[StageWarning] = Field(default_factory=list[StageWarning])
    run: str = ""
    """the run whose attempt made it; empty where only the attempt's claim says"""
    stage: str = ""
    """the name that the stage has in that run"""

    @property
    def name(self) -> str:
        """Return how a person refers to it, e.g. `sft/3f09c2b1a7d4`."""
        return f"{self.kind}/{self.digest[:12]}"


class Manifest(_Stored):
    """`manifest.json`: created last, so a stage is done if and only if it is there."""

    kind: str
    digest: str
    """full sha256 over kind, identity, input digests and code"""
    attempt: int
    """which attempt made it: its files are in the folder `a<attempt>`"""
    files: list[FileRecord]
    identity: dict[str, Any]
    """the settings that the digest is made of"""
    inputs: dict[str, str]
    """digests of the input artifacts by role"""
    code: dict[str, Any]
    """a `CodeIdentity`: hash, files, version, commit, whether the checkout was dirty"""
    again: str = ""
    """the run that was told to run the stage again; part of the digest"""
    run: str = ""
    """the run whose attempt made it; part of nothing"""
    stage: str = ""
    """the name that the stage has in that run"""
    seeds: dict[str, int]
    metrics: dict[str, float]
    warnings: list[StageWarning] = Field(default_factory=list[StageWarning])
    """what its stage found wrong with the result"""
    mlflow_run_id: str
    seconds: float
    created: float
    libraries: dict[str, str]
    machine: dict[str, str]

    @property
    def folder(self) -> str:
        return f"a{self.attempt}"


@cache
def library_versions() -> Mapping[str, str]:
    """Versions of the libraries that can change numbers, without importing them."""
    versions = {"python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


@cache
def machine_type() -> Mapping[str, str]:
    """Example: {"system": "Linux", "arch": "x86_64", "cpu": "AMD EPYC", "accelerator": "none"}"""
    return {
        "system": platform.system(),
        "arch": platform.machine(),
        "cpu": _cpu_name() or platform.processor(),
        "accelerator": gpu_name() or "none",
    }


def _cpu_name() -> str:
    file = Path("/proc/cpuinfo")
    for line in file.read_text(errors="replace").splitlines() if file.exists() else []:
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return ""
