"""Checks of a stage's RL algorithm, before anything runs: what does not go together."""

from __future__ import annotations

from collections.abc import Iterator

from engines.algorithms.combinations import refusals
from flows.plan import PlannedStage

_HALF_TYPES = ("bfloat16", "float16", "half")
_HALF_GATE = 0.01
"""nats per token; the most that 16 bits were measured to cost is about this"""


def algorithm_problems(stage: PlannedStage) -> Iterator[str]:
    """Each as `stage NAME: FIELD: reason; way out`."""
    yield from (f"stage {stage.name}: {line}" for line in stage.spec.problems())
    settings = stage.spec.policy
    if settings is None:
        return
    where, has_teachers = f"stage {stage.name}: algorithm", stage.spec.has_teachers
    for refusal in refusals(settings.algorithm, settings.group_size, has_teachers=has_teachers):
        yield f"{where}.{refusal}"
    num_rollouts = settings.problems_per_step * settings.group_size
    if num_rollouts == 1 and "batch" in settings.algorithm.needs:
        yield (
            f"{where}.advantage: its baseline is the step's batch, which is only one rollout; raise"
            " problems_per_step or group_size"
        )


def algorithm_cautions(stage: PlannedStage) -> Iterator[str]:
    """What can run but hardly learns, or stops at its first step."""
    yield from (f"stage {stage.name}: {line}" for line in stage.spec.cautions())
    settings = stage.spec.policy
    if settings is None:
        return
    temperature = settings.algorithm.temperature
    if temperature != 1.0:
        yield (
            f"stage {stage.name}: algorithm.temperature: is {temperature:g}: rollouts are sampled,"
            " and trainer and engine compare probabilities, at this temperature; scores are still"
            " of temperature 1 and greedy answers"
        )
    dtype = settings.fleet.sglang.get("dtype")
    cache = settings.fleet.sglang.get("kv_cache_dtype", "auto")
    if str(cache).startswith("fp"):
        yield (
            f"stage {stage.name}: fleet.sglang.kv_cache_dtype: {cache} rounds keys and values, so"
            " the servers sample from other probabilities than the trainer computes; look at"
            " mismatch_k3 and use a correction"
        )
    gate = settings.algorithm.agreement_gate
    if gate < _HALF_GATE and (settings.trainer.precision == "bf16" or dtype in _HALF_TYPES):
        yield (
            f"stage {stage.name}: algorithm.agreement_gate: trainer and engine differ by 0.001 to"
            f" 0.01 nats per token if one of them computes in 16 bits; above {gate:g} the stage"
            " stops; set it to 0.05"
        )
