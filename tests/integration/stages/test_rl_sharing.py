"""An RL stage whose trainer and servers take turns on the same devices: the same bits as with
devices of their own, also when it is stopped and continued in between.

On a CPU a server that sleeps ends, and starts again with the weights that the next publish brings;
ranks put their memory into files. The order and the calls are those of a GPU.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.rl.body import run as run_rl
from tasks.rl.curve import CURVE_FILE, Curve
from tasks.rl.spec import RlSpec
from tasks.stage import StageContext, StageResources, Stopped
from tests.integration.stages.test_rl_exact import result
from tests.parts.stage_parts import STEADY, ListReporter, stage_context

pytestmark = pytest.mark.integration

_OF_DEVICES = ("_given_back_bytes", "_left_bytes")


def _spec() -> RlSpec:
    grade = {"name": "tests.parts.stage_parts:grade_of_content"}
    domain = {**STEADY, "rewards": [STEADY["rewards"][0], grade], "max_new_tokens": 12}
    settings = {
        "steps": 2,
        "problems_per_step": 2,
        "group_size": 4,
        "optimizer": {"lr": 1e-2},
        "checkpoint_every": 1,
        "keep_rollouts": True,
        "evaluate": {"every": 1, "problems": 4},
    }
    return RlSpec.model_validate({"settings": settings, "domains": [domain]})


def _context(root: Path, name: str, model: Path, *, share: bool) -> StageContext:
    return stage_context(root, name, {"model": model}, resources=StageResources(share=share))


def _trained(context: StageContext) -> list[bytes]:
    """Every rollout that was trained on, tokens and logprobs, and which step took which."""
    files = [*sorted((context.out / "trained").iterdir()), context.out / "takes.jsonl"]
    return [file.read_bytes() for file in files]


async def test_one_device_for_both_gives_the_bits_of_two(
    cluster: None, stage_root: Path, small_base: Path
) -> None:
    apart = _context(stage_root, "apart", small_base, share=False)
    await run_rl(_spec(), apart)

    begun = _context(stage_root, "together", small_base, share=True)
    begun.stop.requested = True
    with pytest.raises(Stopped, match="after step 1"):
        await run_rl(_spec(), begun)
    together = _context(stage_root, "together", small_base, share=True)
    await run_rl(_spec(), together)

    weights, shown, steps = result(apart)
    theirs, shown_theirs, steps_theirs = result(together)
    assert theirs == weights
    assert shown_theirs == shown
    assert _trained(together) == _trained(apart)
    for number in (1, 2):
        told = {k: v for k, v in steps_theirs[number].items() if not k.endswith(_OF_DEVICES)}
        assert told == steps[number]
    curves = [
        Curve.model_validate_json((x.out / CURVE_FILE).read_bytes()) for x in (apart, together)
    ]
    scores = [[p.outcome for p in c.held_out["general"]] for c in curves]
    assert scores[0] == scores[1]
    assert len(scores[0]) == 3

    reporter = together.reporter
    assert isinstance(reporter, ListReporter)
    second = reporter.steps[2]
    for role in ("trainer", "servers"):
        assert second[f"{role}_given_back_bytes"] > 1e5
        assert second[f"{role}_sleep_seconds"] > 0
        assert second[f"{role}_wake_seconds"] > 0
        assert second[f"{role}_left_bytes"] <= 64 << 20
    assert not [warning for warning in reporter.warnings if "although it sleeps" in warning]
