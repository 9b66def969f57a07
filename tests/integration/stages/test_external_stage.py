"""An RL stage on servers of others ends with the same bits as on servers of ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from engines.sglang.spec import FleetSpec
from engines.weights.server_weights import server_weights
from tasks.durable.identity import spec_content
from tasks.rl.body import run as run_rl
from tasks.rl.spec import RlSpec
from tests.integration.conftest import SglangPair
from tests.integration.stages.test_rl_stage import rl_spec
from tests.parts.stage_parts import stage_context

pytestmark = pytest.mark.integration
NAMES = ("server-2", "server-3")


@pytest.fixture
def theirs(running_pair: SglangPair, small_base: Path) -> list[str]:
    """Two more servers, started by nobody whom the stage knows."""
    slots = running_pair.slots
    slots.grow(4)
    for name in NAMES:
        slots[name].ensure(FleetSpec(), small_base, 1)
    return [slots[name].url for name in NAMES]


async def test_samples_and_weights_are_those_of_managed_servers(
    cluster: None, stage_root: Path, small_base: Path, theirs: list[str], running_pair: SglangPair
) -> None:
    managed = stage_context(stage_root, "rl-managed", {"model": small_base})
    await run_rl(rl_spec(2), managed)
    before = [server_weights(url) for url in theirs]
    external = stage_context(stage_root, "rl-external", {"model": small_base})
    content = rl_spec(2).model_dump()
    content["settings"]["fleet"]["external"] = theirs
    spec = RlSpec.model_validate(content)
    assert spec_content(spec) == spec_content(rl_spec(2)), "where a stage runs is in no digest"
    await run_rl(spec, external)
    for name in ("model.safetensors", "takes.jsonl", "rollouts.parquet"):
        assert (external.out / name).read_bytes() == (managed.out / name).read_bytes(), name
    assert [server_weights(url) for url in theirs] == before
    for name in NAMES:
        running_pair.slots[name].stop()
