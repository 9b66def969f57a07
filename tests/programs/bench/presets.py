"""Seconds of a training step under each preset, relative to grpo's: same model, same samples.

In every round each preset takes one step, so that a slow moment meets all. Presets that need a
critic or teachers are left out: their step is that of more than one model.
"""

from __future__ import annotations

import statistics

from engines.algorithms.advantages import DistillationAdvantage, GaeAdvantage
from engines.algorithms.spec import PRESETS, Algorithm
from engines.step_inputs import StepInputs
from tests.programs.bench.clock import Spent, median_ratio, timed
from tests.programs.bench.rows import Row
from tests.programs.bench.trainer import rl_samples
from tests.programs.bench.workbench import Workbench

ROUNDS = 5
BASELINE = "grpo"


def measure(bench: Workbench) -> list[Row]:
    trainer = bench.trainer()
    samples = rl_samples(bench, trainer)
    chosen = {name: a for name, a in _algorithms().items() if not _needs_another_role(a)}
    spent: dict[str, list[Spent]] = {name: [] for name in chosen}
    # The first round warms up.
    for _ in range(ROUNDS + 1):
        for name, algorithm in chosen.items():
            spent[name].append(
                timed(lambda a=algorithm: trainer.rl_step(StepInputs(samples, a, gate=False)))
            )
    return [_row(name, of[1:], spent[BASELINE][1:]) for name, of in spent.items()]


def _algorithms() -> dict[str, Algorithm]:
    return {name: Algorithm.model_validate({"preset": name}) for name in PRESETS}


def _needs_another_role(algorithm: Algorithm) -> bool:
    return isinstance(algorithm.advantage, GaeAdvantage | DistillationAdvantage)


def _row(name: str, ours: list[Spent], baseline: list[Spent]) -> Row:
    ratio = median_ratio(ours, baseline)
    seconds = statistics.median(step.wall for step in ours)
    return Row(
        f"step time of {name} over {BASELINE}'s",
        ratio.wall,
        "ratio",
        note=f"{seconds:.2f} s a step; by CPU seconds {ratio.cpu:.2f}; median of {ROUNDS} rounds",
    )
