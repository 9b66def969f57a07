"""The optimizer steps of `rl` on rollouts that are there already: no servers, no sampling."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self

from engines.rollout.consumer import Consumer
from engines.rollout.metrics import step_metrics
from engines.rollout.producer import Sampled
from engines.rollout.published_policy import UnpublishedPolicy
from engines.types import Group
from tasks.rl.spec import RlSettings
from tasks.rl.trained_roles import Roles, consumer_of, lease_roles
from tasks.saving import Saving, Written
from tasks.stage import StageContext, Stopped
from tasks.training_record import Updates

_STATE_FILE = "state.json"


@dataclass(slots=True)
class TrainingOnSaved:
    """Made by `begin`, which continues from the newest checkpoint."""

    context: StageContext
    settings: RlSettings
    roles: Roles
    consumer: Consumer
    policy: UnpublishedPolicy
    saving: Saving
    done: int = 0
    """the last step that is trained"""
    updates: Updates = field(default_factory=Updates)

    @classmethod
    async def begin(
        cls,
        stack: AsyncExitStack,
        settings: RlSettings,
        seed: int,
        context: StageContext,
        teachers: Mapping[str, Path],
    ) -> Self:
        """Lease the ranks, loaded with `inputs["model"]`; released with the stack."""
        roles = await lease_roles(stack, settings, seed, context, context.inputs["model"])
        if teachers:
            await roles.trainer.load_teachers(teachers)
        policy = UnpublishedPolicy()
        saving = await stack.enter_async_context(Saving(context, lambda _: None))
        made = cls(context, settings, roles, consumer_of(roles, settings, policy), policy, saving)
        await made._resume()
        return made

    async def step(self, step: int, groups: Sequence[Group], last: int) -> None:
        """Train on the groups. Raises what an optimizer step raises; Stopped."""
        await self.saving.wait_for_snapshot()
        result = await self.consumer.step(step, groups, Sampled())
        self.done = step
        if result.trained or not result.critic:
            self.updates.observe(result.trained)
        reporter, stop = self.context.reporter, self.context.stop
        reporter.metrics(step, step_metrics(result))
        reporter.progress(step, last, f"{len(groups)} groups")
        stopping = stop.requested and step < last
        if stopping or (step % self.settings.checkpoint_every == 0 and step < last):
            await self.saving.begin(step, 0.0, partial(self._snapshot, step))
        if stopping:
            raise Stopped(f"stopped after step {step}; the stage continues from this checkpoint")

    async def export(self) -> None:
        """Write the model into `context.out`. Raises TrainingStopped where it did not change."""
        context = self.context
        changed = await self.roles.export(context.out, context.inputs["model"])
        self.updates.require_change(changed, context.reporter)

    def _snapshot(self, step: int, folder: Path) -> Coroutine[Any, Any, Written]:
        state = {
            "step": step,
            "version": self.policy.version,
            "updates": self.updates.state(),
        }
        (folder / _STATE_FILE).write_text(json.dumps(state))
        return self.roles.begin_save(folder)

    async def _resume(self) -> None:
        latest = await asyncio.to_thread(self.context.checkpoints.latest)
        if latest is None:
            return
        state = json.loads((latest[1] / _STATE_FILE).read_text())
        await self.roles.load(latest[1])
        self.done, self.policy.version = state["step"], state["version"]
        self.updates.restore(state["updates"])
