"""Evaluator: scores the policy on held-out problems while it trains.

    publish v ──▶ begin ──▶ rollouts of v, beside the next step's sampling and update
                                                  └──▶ finish ──▶ publish v + 1

A score belongs to one version: the next publish waits until the rollouts are finished, at most
until their time is over. Then the problems that are finished count, and the others are cancelled.
Draws hang on seed and position, so what is sampled for training is the same with it and without.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from engines.rollout.drivers.live_domain import LiveDomain
from engines.rollout.roller import Roller
from engines.types import Problem, Rollout
from infra.timeline import EVALUATION, span

_TEMPERATURE = 1.0
_CANCEL_S = 30.0
"""what rollouts that are out of time may take to close their environments"""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A domain's problems that nothing is trained on."""

    domain: LiveDomain
    problems: Sequence[Problem]


@dataclass(frozen=True, slots=True)
class Evaluated:
    """What one evaluation came to."""

    step: int
    """steps that were done when it began"""
    version: int
    """of the policy that was scored"""
    wanted: int
    """problems of each domain"""
    groups: Mapping[str, Sequence[Sequence[Rollout]]]
    """by domain: all rollouts of each problem that was finished in time, problems in order"""
    seconds: float
    failure: str = ""
    """why problems are missing; empty when none is"""


class Evaluator:
    """Of one stage. One evaluation at a time."""

    def __init__(
        self, *, roller: Roller, held_out: Sequence[HeldOut], samples: int, timeout_s: float
    ) -> None:
        """`samples` of each problem; `timeout_s` for all of them."""
        self._roller = roller
        self._held_out = held_out
        self._samples = samples
        self._timeout_s = timeout_s
        self._running: asyncio.Task[Evaluated] | None = None

    def begin(self, step: int, version: int) -> None:
        """Start sampling from the policy of this version, once the evaluation before is taken."""
        assert self._running is None
        self._running = asyncio.create_task(self._evaluate(step, version), name="evaluation")

    @property
    def is_running(self) -> bool:
        """Whether an evaluation was begun and its result not taken."""
        return self._running is not None

    async def finish(self) -> Evaluated:
        """Wait for what was begun, at most until its time is over."""
        assert self._running is not None
        evaluated = await asyncio.shield(self._running)
        self._running = None
        return evaluated

    async def close(self) -> None:
        """Give up what is under way."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait({self._running}, timeout=_CANCEL_S)
            self._running = None

    async def _evaluate(self, step: int, version: int) -> Evaluated:
        began = time.monotonic()
        rolls = [
            asyncio.create_task(self._roll(held_out.domain, problem), name=f"held out {problem.id}")
            for held_out in self._held_out
            for problem in held_out.problems
        ]
        with span(EVALUATION, f"after step {step}", version=version):
            try:
                await asyncio.wait(rolls, timeout=self._timeout_s)
            finally:
                for roll in rolls:
                    roll.cancel()
                await asyncio.wait(rolls, timeout=_CANCEL_S)
        groups: dict[str, list[list[Rollout]]] = {h.domain.name: [] for h in self._held_out}
        faults: Counter[str] = Counter()
        for domain, roll in zip(self._domains(), rolls, strict=True):
            fault = self._fault(roll, version)
            if fault:
                faults[fault] += 1
            else:
                groups[domain].append(roll.result())
        return Evaluated(
            step=step,
            version=version,
            wanted=len(self._held_out[0].problems),
            groups=groups,
            seconds=time.monotonic() - began,
            failure="; ".join(f"{count} problems {fault}" for fault, count in faults.items()),
        )

    async def _roll(self, domain: LiveDomain, problem: Problem) -> list[Rollout]:
        return await self._roller.roll_group(
            domain,
            problem,
            self._samples,
            temperature=_TEMPERATURE,
            group_id=f"evaluation/{problem.id}",
            seed_name=problem.id,
        )

    def _domains(self) -> Iterator[str]:
        """Of each problem."""
        for held_out in self._held_out:
            yield from [held_out.domain.name] * len(held_out.problems)

    def _fault(self, roll: asyncio.Task[list[Rollout]], version: int) -> str:
        """Why a problem does not count; empty if it does. Training goes on without it, and ends by
        itself where the engine is lost."""
        if not roll.done() or roll.cancelled():
            return f"were not finished in {self._timeout_s:g} s"
        error = roll.exception()
        if error is not None:
            return f"were lost: {type(error).__name__}: {error}"
        if any(rollout.weight_versions - {version} for rollout in roll.result()):
            return f"were sampled from other weights than those of version {version}"
        return ""
