"""Replay: its spec, its plan, and how weights are compared."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from flows.catalog import plan_of
from flows.load import load_recipe
from infra.errors import InputError
from tasks.replay.body import WeightDifference, weight_difference

KEEPS = "experts.agent.path.1.rl.keep_rollouts=true"


def planned(stage: str, *changes: str):
    recipe = load_recipe("cpu-smoke", list(changes))
    return plan_of("replay", recipe, {"stage": stage, "flow": "post-train", "arguments": {}})


def test_a_replay_needs_the_stage_and_what_it_was_made_from() -> None:
    plan = planned("agent-rl", KEEPS)
    assert [stage.name for stage in plan] == ["base", "agent-sft", "agent-rl", "agent-rl-replay"]
    replay = plan[-1]
    assert replay.inputs == {"model": "agent-sft", "rollouts": "agent-rl"}
    assert replay.spec.trainer == plan[-2].spec.trainer
    assert replay.spec.fleet is None, "nothing is generated"
    assert replay.spec.trained_roles == ("policy",)


def test_stages_without_rollouts_are_refused() -> None:
    with pytest.raises(InputError, match=r"agent-rl cannot be replayed: .*`keep_rollouts: true`"):
        planned("agent-rl")
    with pytest.raises(InputError, match="a stage of kind sft is not trained on its own rollouts"):
        planned("agent-sft")
    with pytest.raises(InputError, match=r"no stage `agent-lr` to replay.*did you mean"):
        planned("agent-lr", KEEPS)


def folder(path: Path, **tensors: torch.Tensor) -> Path:
    path.mkdir()
    save_file(tensors, path / "model.safetensors")
    return path


def test_weights_are_compared_to_the_bit(tmp_path: Path) -> None:
    values = torch.tensor([0.0, 1.0, math.nan])
    one = folder(tmp_path / "one", a=values, b=torch.ones(2))
    same = folder(tmp_path / "same", a=values.clone(), b=torch.ones(2))
    assert weight_difference(one, same) == WeightDifference(2, (), 0.0)

    other = folder(tmp_path / "other", a=values.clone(), b=torch.tensor([1.0, 1.25]))
    assert weight_difference(one, other) == WeightDifference(2, ("b",), 0.25)
    # minus zero equals zero, and is another bit
    signed = folder(tmp_path / "signed", a=torch.tensor([-0.0, 1.0, math.nan]), b=torch.ones(2))
    assert weight_difference(one, signed).differing == ("a",)
    less = folder(tmp_path / "less", b=torch.ones(3))
    assert weight_difference(one, less) == WeightDifference(2, ("a", "b"), math.inf)
    typed = folder(tmp_path / "typed", a=values.clone(), b=torch.ones(2, dtype=torch.bfloat16))
    assert weight_difference(one, typed) == WeightDifference(2, ("b",), 0.0)
