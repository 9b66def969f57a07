"""Where a stage's weights lie between trainer and servers: the same for each of its attempts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from engines.weights.spec import WeightTransport
from tasks.base.spec import BaseSettings, BaseSpec
from tasks.durable.attempts import StageWork, job_id
from tasks.rl.trained_roles import _weights
from tasks.stage import StageResources
from tests.parts.stage_parts import stage_context

pytestmark = pytest.mark.unit


def test_each_stage_has_a_folder_and_its_attempts_share_it(tmp_path: Path) -> None:
    wanted = WeightTransport(transport="disk_delta", url="s3://bucket/weights/")
    context = stage_context(tmp_path, "rl", {}, resources=StageResources(weights=wanted))
    spec = BaseSpec(settings=BaseSettings(folder="/model"))

    def url(digest: str, attempt: int, run: str = "one") -> str:
        work = StageWork("agent-rl", spec, {}, StageResources(), digest)
        holder = job_id(run, work, "file:///store", attempt)
        return _weights(replace(context, holder=holder)).url

    assert url("a" * 64, 1) == url("a" * 64, 12) == url("a" * 64, 2, "another")
    assert url("a" * 64, 1).startswith("s3://bucket/weights/base-aaaaaaaaaaaa-")
    assert url("a" * 64, 1) != url("b" * 64, 1)


def test_without_a_folder_nothing_is_added(tmp_path: Path) -> None:
    context = stage_context(tmp_path, "rl", {})
    assert _weights(context) == WeightTransport()
