"""How evenly ranks are loaded with long-tailed lengths, and how long that takes to plan.

Lengths are lognormal, cut at the bound of a micro-batch; costs are the FLOPs of a 7B model. The
ideal is what no plan can beat: the mean over ranks, or the heaviest sequence alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from engines.batching import MicroBatch, plan_micro_batches
from engines.families.common.registry import model_shape
from tests.programs.bench.rows import Row

MAX_TOKENS = 65536
MEDIAN, SIGMA = 3000, 1.2
RANKS = (8, 64, 256)
PER_RANK = 32
DRAWS = 5
PLANNED = 100_000
SHAPE = model_shape(
    {
        "model_type": "qwen2",
        "hidden_size": 3584,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "intermediate_size": 18944,
        "vocab_size": 152064,
    }
)

Plan = list[list[MicroBatch]]
Planner = Callable[[list[int], list[float], int], Plan]


def measure() -> list[Row]:
    rows: list[Row] = []
    for ranks in RANKS:
        rows += _balance(ranks)
    return [*rows, _planning()]


def _balance(ranks: int) -> list[Row]:
    rows: list[Row] = []
    for name, planner in PLANNERS.items():
        found = [_one_draw(planner, ranks, seed) for seed in range(DRAWS)]
        counts = sorted({count for _, count in found})
        rows.append(
            Row(
                f"slowest rank over ideal by FLOPs, {ranks} ranks, {name}",
                max(ratio for ratio, _ in found),
                "ratio",
                floor=1.05 if planner is _by_flops else None,
                at_most=True,
                note=f"worst of {DRAWS} draws of {PER_RANK} sequences a rank;"
                f" {'-'.join(map(str, counts))} micro-batches a rank",
            )
        )
    return rows


def _one_draw(planner: Planner, ranks: int, seed: int) -> tuple[float, int]:
    """(slowest rank over ideal, micro-batches a rank)."""
    lengths, costs = _long_tail(ranks * PER_RANK, seed)
    plan = planner(lengths, costs, ranks)
    loads = [sum(costs[i] for batch in rank for i in batch) for rank in plan]
    ideal = max(sum(costs) / ranks, max(costs))
    return max(loads) / ideal, max(map(len, plan))


def _planning() -> Row:
    lengths, costs = _long_tail(PLANNED, 0)
    spent = {ranks: _seconds(lengths, costs, ranks) for ranks in RANKS}
    each = ", ".join(f"{seconds:.2f} s for {ranks} ranks" for ranks, seconds in spent.items())
    return Row(
        "planning 100,000 sequences", max(spent.values()), "s", floor=2.0, at_most=True, note=each
    )


def _seconds(lengths: Sequence[int], costs: Sequence[float], ranks: int) -> float:
    began = time.perf_counter()
    plan_micro_batches(lengths, MAX_TOKENS, ranks, costs)
    return time.perf_counter() - began


def _long_tail(number: int, seed: int) -> tuple[list[int], list[float]]:
    """Lengths and FLOPs; every token is trained."""
    drawn = np.random.default_rng(seed).lognormal(np.log(MEDIAN), SIGMA, number)
    lengths = drawn.astype(np.int64).clip(1, MAX_TOKENS)
    return lengths.tolist(), SHAPE.family.flops(SHAPE, lengths, lengths).tolist()


def _by_flops(lengths: list[int], costs: list[float], ranks: int) -> Plan:
    return plan_micro_batches(lengths, MAX_TOKENS, ranks, costs)


def _by_tokens(lengths: list[int], _costs: list[float], ranks: int) -> Plan:
    return plan_micro_batches(lengths, MAX_TOKENS, ranks, [float(n) for n in lengths])


def _strided(lengths: list[int], costs: list[float], ranks: int) -> Plan:
    """Every so-manieth sequence to the same rank, packed there."""
    plan: Plan = []
    for rank in range(ranks):
        own = range(rank, len(lengths), ranks)
        packed = _by_flops([lengths[i] for i in own], [costs[i] for i in own], 1)[0]
        plan.append([[own[i] for i in batch] for batch in packed])
    return plan


PLANNERS: dict[str, Planner] = {
    "ours": _by_flops,
    "packed by tokens": _by_tokens,
    "strided": _strided,
}
