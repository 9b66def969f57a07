"""Changes of recipes, and places that they name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import pytest
from s3fs import S3FileSystem

from flows.checks.trial.request import Blind, Findings, TrialRequest
from flows.checks.trial.tried_parts import try_parts
from flows.path import PathStage
from flows.recipe import Expert
from infra.config import Config
from infra.user_files import install_hooks, read_hooks
from tasks.domain import Domain

S = TypeVar("S", bound=Config)

SMALL = {
    "distill": "{problems: 128}",
    "sft": "{steps: 40, batch_size: 8, optimizer: {lr: 2e-3}}",
    "opd": "{steps: 2, optimizer: {lr: 1e-4}}",
    "rl": "{steps: 2, problems_per_step: 4, group_size: 8, optimizer: {lr: 2e-4}}",
}


def the_last(*changes: str) -> list[str]:
    """Return the last change of each field: a command refuses two of one."""
    return list({change.partition("=")[0]: change for change in changes}.values())


def unified_path(*kinds: str) -> str:
    """A change that makes these the stages of the unified model, with small settings."""
    return f"unified.path=[{', '.join(f'{kind}: {SMALL[kind]}' for kind in kinds)}]"


def settings_of(path: Sequence[PathStage], settings: type[S]) -> S:
    """Those of the first stage that has this type of settings."""
    return next(stage.settings for stage in path if isinstance(stage.settings, settings))


def domain_of(expert: Expert) -> Domain:
    """That of an expert that has one."""
    assert expert.domain is not None
    return expert.domain


def try_here(request: TrialRequest) -> Findings:
    """What `try_apart` finds, in this process: one of its own takes a second to start."""
    install_hooks(read_hooks(request.hooks, request.data))
    return try_parts(request, Blind())


def unreachable_s3(patch: pytest.MonkeyPatch) -> None:
    """S3 is at a port where nobody answers, and is asked once."""
    patch.delenv("AWS_PROFILE", raising=False)
    patch.setenv("AWS_ACCESS_KEY_ID", "a")
    patch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    patch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    patch.setenv("AWS_MAX_ATTEMPTS", "1")
    S3FileSystem.clear_instance_cache()  # another test may have opened one with other settings
