"""When a policy is scored on held-out problems while it trains, and what becomes of the scores.

    before step 1, after every n-th step, after the last: begin ──▶ before the next publish: finish

An evaluation that a kill cut off is done again by the attempt that continues from a checkpoint: the
policy there is still the one that was to be scored, because no later one was published.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from engines.rollout.drivers.driver import LiveDomain
from engines.rollout.evaluator import Evaluator
from engines.rollout.published_policy import PublishedPolicy
from engines.rollout.roller import RollsGroups
from infra.timeline import TRAINER, span
from tasks.nothink import held_out_of
from tasks.policy import Evaluation
from tasks.rl.stage_record import NEVER, RlRecord
from tasks.stage import StageContext


def evaluator_of(
    settings: Evaluation | None, roller: RollsGroups, domains: Sequence[LiveDomain], seed: int
) -> Evaluator | None:
    """Return what the settings ask for, with its problems drawn. Raises InputError."""
    if settings is None:
        return None
    return Evaluator(
        roller=roller,
        held_out=held_out_of(domains, settings.problems, seed),
        samples=settings.samples,
        timeout_s=settings.timeout_s,
    )


class EvaluationSchedule:
    """The evaluations of one stage. Without an evaluator it does nothing."""

    def __init__(
        self,
        settings: Evaluation | None,
        evaluator: Evaluator | None,
        context: StageContext,
        record: RlRecord,
        policy: PublishedPolicy,
    ) -> None:
        self._every = settings.every if settings else 0
        self._evaluator = evaluator
        self._pulse, self._reporter = context.pulse, context.reporter
        self._record = record
        self._policy = policy
        self._begun = NEVER
        """the step of the evaluation that was begun last"""

    async def begin_if_due(self, *, is_over: bool = False) -> None:
        """Score the policy as it is after the record's step, if it is time and not done yet;
        `is_over`: it will not change any more."""
        if self._evaluator is None:
            return
        step = self._record.step
        due = step if is_over else step - step % self._every
        if due <= max(self._begun, self._record.last_evaluated):
            return
        await self.finish()
        self._begun = due
        self._evaluator.begin(due, self._policy.version)

    async def finish(self) -> None:
        """Have what was begun recorded; waits for it, at most until its time is over."""
        if self._evaluator is not None and self._evaluator.is_running:
            with self._pulse.waiting(), span(TRAINER, "hold"):
                await self._take(self._evaluator)

    async def _take(self, evaluator: Evaluator) -> None:
        began = time.monotonic()
        # A server that is lost now gets weights with the next publish, and none before it.
        evaluated = await evaluator.finish(lambda: self._policy.is_repairing)
        if evaluated.failure:
            self._reporter.warn(
                f"evaluation after step {evaluated.step}: {evaluated.failure}. The score is of the"
                " others; if this repeats, raise `evaluate.timeout_s` or lower `evaluate.problems`"
            )
        self._record.evaluated(evaluated, time.monotonic() - began)

    async def close(self) -> None:
        """Give up what is under way."""
        if self._evaluator is not None:
            await self._evaluator.close()
