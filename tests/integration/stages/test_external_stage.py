"""An RL stage on servers of others, which ask for a key: the same bits as on servers of ours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engines.rollout.records.gallery import read_rollouts
from engines.sglang.external.held_servers import forget_keys
from engines.sglang.servers.server import Place
from engines.sglang.spec import FleetSpec
from engines.weights.transport import ServerWeights, server_weights
from infra.access import EXTERNAL_KEY_VARIABLE, KEY_VARIABLE, note_key, required_key
from infra.home import home
from tasks.durable.stage_identity import spec_content
from tasks.rl.body import run as run_rl
from tasks.rl.spec import RlSpec
from tests.integration.conftest import SglangPair
from tests.integration.stages.test_rl_stage import rl_spec
from tests.parts.stage_parts import stage_context

pytestmark = [pytest.mark.integration, pytest.mark.long]
NAMES = ("server-2",)
KEY = "a-key-that-only-they-know"


@pytest.fixture
def theirs(
    cluster: None, running_pair: SglangPair, small_base: Path, tmp_path: Path
) -> Iterator[list[str]]:
    """One more server, started by nobody whom the stage knows."""
    slots = running_pair.slots
    slots.grow(3)
    urls = [slots[name].url for name in NAMES]
    try:
        with pytest.MonkeyPatch.context() as elsewhere:
            elsewhere.setenv("TRIBUTARY_HOME", str(tmp_path / "their-home"))
            elsewhere.setenv(KEY_VARIABLE, KEY)
            assert required_key() == KEY
            for name in NAMES:
                slots[name].ensure(FleetSpec(), small_base, Place(tp=1))
        yield urls
    finally:
        for name in NAMES:
            slots[name].stop()
        forget_keys(urls)


def _held(urls: list[str]) -> list[ServerWeights]:
    for url in urls:
        note_key(url, KEY)
    return [server_weights(url) for url in urls]


async def test_samples_and_weights_are_those_of_managed_servers(
    stage_root: Path, small_base: Path, theirs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    managed = stage_context(stage_root, "rl-managed", {"model": small_base})
    await run_rl(rl_spec(2), managed)

    before = _held(theirs)
    forget_keys(theirs)
    monkeypatch.setenv(EXTERNAL_KEY_VARIABLE, KEY)
    external = stage_context(stage_root, "rl-external", {"model": small_base})
    content = rl_spec(2).model_dump()
    content["settings"]["fleet"]["external"] = theirs
    spec = RlSpec.model_validate(content)
    assert spec_content(spec) == spec_content(rl_spec(2)), "where a stage runs is in no digest"
    await run_rl(spec, external)

    for name in ("model.safetensors", "takes.jsonl"):
        assert (external.out / name).read_bytes() == (managed.out / name).read_bytes(), name
    shown, expected = (read_rollouts(c.out / "rollouts.parquet") for c in (external, managed))
    assert list(shown) == list(expected)
    assert not list((home() / "external-keys").rglob("*.key"))
    assert _held(theirs) == before
    logs = [file for file in (home() / "logs").rglob("*") if file.is_file()]
    assert logs
    assert not [file for file in logs if KEY in file.read_text(errors="replace")]
