"""How much room a run's stages will take in the store and in MLflow, by the recipe's numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from engines.memory.optimizer_state import OptimizerState
from engines.rollout.records.last_steps import MOST_TOKENS as MOST_LAST_TOKENS
from engines.rollout.records.shown import MOST_TOKENS as MOST_SHOWN_TOKENS
from flows.checks.memory.base_model import BaseModel, base_model
from flows.plan import PlannedStage
from flows.recipe import Recipe

_BYTES = {"fp32": 4, "bf16": 2}
_SHOWN_BYTES, _TRAINED_BYTES = 18, 11
"""of a token in `rollouts.parquet`, with its text, and of one that `keep_rollouts` keeps"""
_POINT_BYTES = 250
"""of a value in MLflow's database, with its indexes"""
_POLICY_POINTS, _OTHER_POINTS = 85, 9
"""of a step"""


@dataclass(frozen=True, slots=True)
class KeptBytes:
    """Bytes that one stage takes, at most."""

    stage: str
    checkpoints: int
    """of those that its retention keeps, and the one that is being written, until it is done"""
    model: int
    """that it leaves"""
    rollouts: int
    """to browse, and those that it was trained on where `keep_rollouts` says so"""
    mlflow: int
    """its curves, until they are thinned"""


def kept_bytes(recipe: Recipe, plan: Sequence[PlannedStage]) -> list[KeptBytes]:
    """Count for each stage that trains; for none where the model's shape is not known."""
    base = base_model(recipe.base)
    if base is None:
        return []
    return [_kept(stage, base) for stage in plan if stage.spec.trainer and stage.steps]


def _kept(stage: PlannedStage, base: BaseModel) -> KeptBytes:
    assert stage.spec.trainer is not None
    weights, precision = base.size.num_weights, stage.spec.trainer.precision
    with_state = _BYTES[precision] + OptimizerState().on_device(precision)
    models = 1 + (stage.critic is not None)
    points = _POLICY_POINTS if stage.spec.policy is not None else _OTHER_POINTS
    return KeptBytes(
        stage.name,
        checkpoints=int(_num_checkpoints(stage) * models * weights * with_state),
        model=weights * _BYTES[precision],
        rollouts=sum(_rollouts(stage, base)),
        mlflow=stage.steps * points * _POINT_BYTES,
    )


def _num_checkpoints(stage: PlannedStage) -> int:
    """Count the checkpoints that are there at one time."""
    kept = stage.resources.checkpoints
    settings = getattr(stage.spec, "settings", None)
    made = -(-stage.steps // getattr(settings, "checkpoint_every", 1))
    others = int(kept.best) + (stage.steps // kept.every if kept.every else 0)
    return min(kept.last + others, made) + 1


def _rollouts(stage: PlannedStage, base: BaseModel) -> Iterator[int]:
    policy = stage.spec.policy
    if policy is None:
        return
    longest = policy.fleet.context_length or base.max_positions
    trained = stage.steps * policy.problems_per_step * policy.group_size * longest
    held_out = MOST_SHOWN_TOKENS if policy.evaluate is not None else 0
    # Of many steps a sample, of the last ones all; nothing is shown that was not sampled.
    yield _SHOWN_BYTES * (min(trained, MOST_SHOWN_TOKENS + MOST_LAST_TOKENS) + held_out)
    yield _TRAINED_BYTES * trained * policy.keep_rollouts
