"""Checks of a stage's RL algorithm, before anything runs: what does not go together."""

from __future__ import annotations

from collections.abc import Iterator

from engines.algorithms.choices import ReinforcePlusPlusAdvantage
from engines.algorithms.combinations import refusals, stale_doubts
from flows.plan import PlannedStage
from tasks.opd.spec import OpdSettings, OpdSpec
from tasks.rl.spec import RlSettings, RlSpec

_HALF_TYPES = ("bfloat16", "float16", "half")
_HALF_GATE = 0.01
"""nats per token; the most that 16 bits were measured to cost is about this"""


def algorithm_problems(stage: PlannedStage) -> Iterator[str]:
    """Each as `stage NAME: algorithm.FIELD: reason; way out`."""
    if not isinstance(stage.spec, RlSpec | OpdSpec):
        return
    settings = stage.spec.settings
    where = f"stage {stage.name}: algorithm"
    has_teachers = isinstance(stage.spec, OpdSpec)
    for refusal in refusals(settings.algorithm, settings.group_size, has_teachers=has_teachers):
        yield f"{where}.{refusal}"
    if settings.problems_per_step * settings.group_size == 1 and _has_the_batch_alone(settings):
        yield (
            f"{where}.advantage: its baseline is the step's batch, which is only one rollout; raise"
            " problems_per_step or group_size"
        )
    if isinstance(settings, RlSettings):
        yield from (f"stage {stage.name}: {line}" for line in _critic(settings))


def algorithm_cautions(stage: PlannedStage) -> Iterator[str]:
    """What can run but hardly learns, or stops at its first step."""
    if not isinstance(stage.spec, RlSpec | OpdSpec):
        return
    settings, where = stage.spec.settings, f"stage {stage.name}: algorithm"
    if isinstance(settings, RlSettings) and settings.max_staleness:
        yield from (f"{where}.{doubt}" for doubt in stale_doubts(settings.algorithm))
    dtype = settings.fleet.sglang.get("dtype")
    gate = settings.algorithm.agreement_gate
    if gate < _HALF_GATE and (settings.trainer.precision == "bf16" or dtype in _HALF_TYPES):
        yield (
            f"{where}.agreement_gate: trainer and engine differ by 0.001 to 0.01 nats per token if"
            f" one of them computes in 16 bits; above {gate:g} the stage stops; set it to 0.05"
        )


def _has_the_batch_alone(settings: RlSettings | OpdSettings) -> bool:
    return isinstance(settings.algorithm.advantage, ReinforcePlusPlusAdvantage)


def _critic(settings: RlSettings) -> Iterator[str]:
    role = settings.critic_role
    if role is None and settings.critic is not None:
        yield (
            f"critic: nothing uses it, as advantage {settings.algorithm.advantage.kind} has none;"
            " leave it out, or choose `algorithm: {preset: ppo}`"
        )
    if role is not None and role.warmup_steps >= settings.steps:
        yield (
            f"critic.warmup_steps: {role.warmup_steps} of {settings.steps} steps leave none to the"
            " policy; lower it"
        )
