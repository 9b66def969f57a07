"""An engine that computes more coarsely than the trainer: announced, bounded, and resumed exactly.

Its server starts anew for it, so this file comes after those whose servers are all alike.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.errors import AgreementError
from tasks.rl.body import run as run_rl
from tasks.stage import Stopped
from tests.integration.stages.rl_victim import context_of, rl_spec
from tests.integration.stages.test_rl_exact import finished, result

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(600)]


async def test_a_coarser_engine_differs_by_its_rounding_and_resumes_to_the_same_bits(
    cluster: None, stage_root: Path, small_base: Path
) -> None:
    whole = await finished(stage_root, small_base, "whole-bf16", "bf16")
    weights, shown, steps = result(whole)
    for step in steps.values():
        # fp32: below 2e-5. This model is nearly uniform; a sharp one differs ten times as much.
        assert 2e-4 < step["mismatch_mean"] < 0.05

    cut = context_of(stage_root, "cut-bf16", small_base)
    cut.stop.requested = True
    with pytest.raises(Stopped, match="after step 1"):
        await run_rl(rl_spec("bf16"), cut)
    rest = await finished(stage_root, small_base, "cut-bf16", "bf16")
    assert result(rest) == (weights, shown, steps)


async def test_the_gate_stops_a_coarser_engine_that_nobody_announced(
    cluster: None, stage_root: Path, small_base: Path
) -> None:
    settings = rl_spec("bf16").settings
    strict = settings.algorithm.model_copy(update={"agreement_gate": 1e-4})
    spec = rl_spec("bf16").model_copy(
        update={"settings": settings.model_copy(update={"algorithm": strict})}
    )
    with pytest.raises(AgreementError, match="over the gate 1e-04"):
        await run_rl(spec, context_of(stage_root, "gated-bf16", small_base))
