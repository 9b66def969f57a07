"""What `make scale` simulates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tests.programs.scale.simulation import Setup
from tests.programs.scale.workload import PARETO

LEAST = 0.9
"""of the bound"""


@dataclass(frozen=True, slots=True)
class Case:
    """A setup, and what it has to reach."""

    name: str
    setup: Setup
    floor: float | None = None
    """of goodput / bound; None: only shown"""


SIZES: Mapping[int, Mapping[int, tuple[int, int]]] = {
    64: {0: (1, 2), 1: (3, 6), 2: (3, 6), 4: (3, 6)},
    256: {0: (1, 1), 2: (2, 3), 4: (2, 3)},
    1024: {0: (1, 1), 2: (2, 3)},
}
"""servers -> staleness -> steps of warm-up, and steps measured: fewer where each costs more"""


def balanced() -> list[Case]:
    """Trainer and servers have the same rate."""
    return [
        Case(
            f"{servers} servers, {how(staleness)}",
            Setup(servers, staleness, warm_up=warm_up, steps=steps),
            LEAST if staleness >= 2 else None,
        )
        for servers, by_staleness in SIZES.items()
        for staleness, (warm_up, steps) in by_staleness.items()
    ]


def variants() -> list[Case]:
    """With 64 servers and staleness 2, if nothing else is said."""
    base = Setup(64, 2)
    return [
        Case("sampling is the bottleneck", replace(base, trainer_share=2.0), LEAST),
        Case("training is the bottleneck", replace(base, trainer_share=0.5), LEAST),
        Case(
            "a quarter of the problems teaches nothing, oversample 1.5",
            replace(base, easy_share=0.25, oversample=1.5),
            LEAST,
        ),
        Case("Pareto lengths, staleness 4", replace(base, staleness=4, length=PARETO), LEAST),
        Case(
            "4 turns a rollout, tools of 10 s",
            replace(base, turns=4, tool_s=10.0, rollouts_a_place=2.0),
            LEAST,
        ),
        Case("each server lost every 4 hours", replace(base, hours_to_failure=4.0)),
        Case(
            "in turns, partial rollouts of 2,048 tokens, oversample 1.5",
            replace(base, round_tokens=2048, oversample=1.5, warm_up=6, steps=12),
        ),
    ]


def how(staleness: int) -> str:
    return f"staleness {staleness}" if staleness else "in turns"
