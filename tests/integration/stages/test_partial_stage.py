"""Rollouts that go on in the next step, on real engines, after a kill."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.stages.test_rl_exact import check_same, finished, result, resumed

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


async def test_partial_rollouts_of_a_stage_that_is_killed_go_on_to_the_same_bits(
    cluster: None, stage_root: Path, small_base: Path
) -> None:
    whole = await finished(stage_root, small_base, "whole-partial", "partial")
    _, _, steps = result(whole)
    for number, step in steps.items():
        assert step["groups_kept"] == 4
        assert step["groups_dropped"] == 0, "none became too old"
        assert (step["rollouts_unfinished"] > 0) == (number < 5)
        assert step.get("lag0_mean", step["mismatch_mean"]) <= 2e-5, "of the weights that wrote it"
    assert max(step["staleness_max"] for step in steps.values()) > 0
    assert any(0 < step.get("tokens_lag_0", 0) < 1 for step in steps.values()), "of two weights"
    check_same(whole, await resumed(stage_root, small_base, "partial", ["mid-generation"]))
