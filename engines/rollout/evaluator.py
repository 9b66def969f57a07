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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from engines.algorithms.spec import Keep
from engines.rollout.drivers.driver import LiveDomain
from engines.rollout.roller import RollsGroups
from engines.types import Problem, Rollout
from infra.timeline import EVALUATION, span

_TEMPERATURE = 1.0
_CANCEL_S = 30.0
"""what rollouts that are out of time may take to close their environments"""
_STUCK_S = 20.0
"""what an evaluation may take to its next finished problem while a server is lost"""
_LOOK_S = 0.5


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A domain's problems that nothing is trained on."""

    domain: LiveDomain
    problems: Sequence[Problem]
    mode: str = ""
    """ends the name of its scores where a domain is scored in two modes"""

    @property
    def name(self) -> str:
        return self.domain.name + self.mode


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
    """by name: all rollouts of each problem that was finished in time, problems in order"""
    seconds: float
    failure: str = ""
    """why problems are missing; empty when none is"""


class Evaluator:
    """The evaluator of one stage. One evaluation at a time."""

    def __init__(
        self,
        *,
        roller: RollsGroups,
        held_out: Sequence[HeldOut],
        samples: int,
        timeout_s: float,
        temperature: float = _TEMPERATURE,
        keep: Keep | None = None,
        name: str = "evaluation",
    ) -> None:
        """`samples` of each problem; `timeout_s` for all of them. Evaluators that sample at the
        same time have different names."""
        self._roller = roller
        self._held_out = held_out
        self._samples = samples
        self._timeout_s = timeout_s
        self._temperature = temperature
        self._keep = keep
        self._name = name
        self._running: asyncio.Task[Evaluated] | None = None
        self._rolls: list[asyncio.Task[list[Rollout]]] = []
        self._got_on = 0.0
        """when the last problem was finished"""

    def begin(self, step: int, version: int) -> None:
        """Start sampling from the policy of this version, once the evaluation before is taken."""
        assert self._running is None
        self._running = asyncio.create_task(self._evaluate(step, version), name="evaluation")

    @property
    def is_running(self) -> bool:
        """Return whether an evaluation was begun and its result not taken."""
        return self._running is not None

    async def finish(self, is_stuck: Callable[[], bool] = lambda: False) -> Evaluated:
        """Wait for what was begun, at most until its time is over. While it `is_stuck`, it has only
        a moment for each further problem."""
        assert self._running is not None
        while not self._running.done():
            await asyncio.wait({self._running}, timeout=_LOOK_S)
            if is_stuck() and time.monotonic() - self._got_on > _STUCK_S:
                self._cut_short()
        evaluated = self._running.result()
        self._running = None
        return evaluated

    async def close(self) -> None:
        """Give up what is under way."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait({self._running}, timeout=_CANCEL_S)
            self._running = None

    async def _evaluate(self, step: int, version: int) -> Evaluated:
        began = self._got_on = time.monotonic()
        self._rolls = [
            asyncio.create_task(self._roll(held_out, problem), name=f"held out {problem.id}")
            for held_out in self._held_out
            for problem in held_out.problems
        ]
        with span(EVALUATION, f"after step {step}", version=version):
            try:
                await asyncio.wait(self._rolls, timeout=self._timeout_s)
            finally:
                self._cut_short()
                seconds = time.monotonic() - began
                await asyncio.wait(self._rolls, timeout=_CANCEL_S)
        groups: dict[str, list[list[Rollout]]] = {h.name: [] for h in self._held_out}
        faults: Counter[str] = Counter()
        for name, roll in zip(self._names(), self._rolls, strict=True):
            fault = _fault(roll, version, seconds)
            if fault:
                faults[fault] += 1
            else:
                groups[name].append(roll.result())
        return Evaluated(
            step=step,
            version=version,
            wanted=len(self._held_out[0].problems),
            groups=groups,
            seconds=seconds,
            failure="; ".join(f"{count} problems {fault}" for fault, count in faults.items()),
        )

    async def _roll(self, held_out: HeldOut, problem: Problem) -> list[Rollout]:
        rollouts = await self._roller.roll_group(
            held_out.domain,
            problem,
            self._samples,
            temperature=self._temperature,
            group_id=f"{self._name}{held_out.mode}/{problem.id}",
            seed_name=problem.id,
            keep=self._keep,
        )
        self._got_on = time.monotonic()
        return rollouts

    def _cut_short(self) -> None:
        for roll in self._rolls:
            roll.cancel()

    def _names(self) -> Iterator[str]:
        """Return the names of each problem's scores."""
        for held_out in self._held_out:
            yield from [held_out.name] * len(held_out.problems)


def _fault(roll: asyncio.Task[list[Rollout]], version: int, seconds: float) -> str:
    """Why a problem does not count; empty if it does. Training goes on without it, and ends by
    itself where the engine is lost."""
    if not roll.done() or roll.cancelled():
        return f"were not finished in {seconds:.1f} s"
    error = roll.exception()
    if error is not None:
        return f"were lost: {type(error).__name__}: {error}"
    if any(rollout.weight_versions - {version} for rollout in roll.result()):
        return f"were sampled from other weights than those of version {version}"
    return ""
