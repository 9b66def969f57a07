"""Consumer: trains on a batch, publishes the new weights, hands the version back.

    with a critic:  values of the batch ──▶ policy step and critic step side by side, both from
                    these values; in the first steps the critic's alone

consumes: `StepBatch`     produces: policy version + 1, metrics
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from engines.algorithms.sample_rules import trains
from engines.algorithms.spec import Algorithm
from engines.rollout.batch import StepBatch
from engines.rollout.producer import trainable
from engines.rollout.protocols import PolicyTrainer, Publish, ValueTrainer
from engines.step_inputs import StepInputs
from engines.types import Sample
from infra.run_both import run_both

_MIN_SHARE = 0.25
"""with fewer than this share of the required groups an update would be noise: it is skipped"""


@dataclass(slots=True)
class StepResult:
    """What one step did."""

    step: int
    version: int
    """policy version after it"""
    batch: StepBatch
    trained: dict[str, float] = field(default_factory=dict)
    """the policy's metrics; empty when its update was skipped"""
    critic: dict[str, float] = field(default_factory=dict)
    """the critic's, where there is one"""
    train_seconds: float = 0.0
    publish_seconds: float = 0.0
    publish_bytes: int = 0

    @property
    def staleness(self) -> list[int]:
        """For each trainable sample: the training version minus its oldest token's version."""
        trained_at = self.version - bool(self.trained)
        groups = [trainable(group) for group in self.batch.groups]
        return [trained_at - s.oldest_version for g in groups for s in g.samples]


class Consumer:
    """One optimizer pass and one publish a batch."""

    def __init__(
        self,
        *,
        trainer: PolicyTrainer,
        publish: Publish,
        algorithm: Algorithm,
        version: int,
        critic: ValueTrainer | None = None,
        critic_only_steps: int = 0,
    ) -> None:
        """In the first `critic_only_steps` steps of the stage the policy stays as it is."""
        self._trainer = trainer
        self._critic = critic
        self._critic_only_steps = critic_only_steps
        self._put = publish
        self._algorithm = algorithm
        self._version = version

    async def agreement(self, batch: StepBatch) -> dict[str, float]:
        """Metrics of the engine against the trainer, on a batch that the present weights sampled.

        Raises AgreementError beyond the gate.
        """
        samples = self._trainable(batch)
        if not samples:
            return {}
        return await self._trainer.agreement(StepInputs(samples, self._algorithm))

    def _trainable(self, batch: StepBatch) -> list[Sample]:
        """Empty where nothing of the batch has a token to train on."""
        samples = [s for group in batch.groups for s in trainable(group).samples]
        return samples if any(trains(s, self._algorithm.truncated) for s in samples) else []

    async def step(self, step: int, batch: StepBatch) -> StepResult:
        """One update and publish. Raises EngineError, AgreementError, TrainingStopped."""
        samples = self._trainable(batch)
        too_few = len(batch.groups) < _MIN_SHARE * batch.wanted
        if too_few or not samples:
            return StepResult(step, self._version, batch)
        began = time.monotonic()
        gate = batch.version == self._version
        inputs = StepInputs(samples, self._algorithm, gate, self._version)
        trained, of_critic = await self._train(step, inputs)
        result = StepResult(step, self._version, batch, trained, of_critic)
        result.train_seconds = time.monotonic() - began
        if trained:
            await self._publish(result)
        return result

    async def _train(
        self, step: int, inputs: StepInputs
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Metrics of the policy's update and of the critic's; empty where there was none."""
        if self._critic is None:
            return await self._trainer.rl_step(inputs), {}
        inputs = replace(inputs, values=await self._critic.values(inputs))
        kl = self._algorithm.kl
        if kl.coef and kl.place == "reward":
            inputs = replace(inputs, token_rewards=await self._trainer.token_rewards(inputs))
        learning = self._critic.critic_step(inputs)
        if step <= self._critic_only_steps:
            return {}, await learning
        return await run_both(self._trainer.rl_step(inputs), learning)

    async def _publish(self, result: StepResult) -> None:
        began = time.monotonic()
        report = await self._put(self._version + 1)
        self._version = result.version = self._version + 1
        result.publish_seconds = time.monotonic() - began
        result.publish_bytes = report.bytes
