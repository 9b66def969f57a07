"""Consumer: trains on a step's groups and has the new weights published.

    with a critic:  values of the batch ──▶ policy step and critic step side by side, both from
                    these values; in the first steps the critic's alone

consumes: groups     produces: the next policy version, metrics
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from engines.algorithms.aggregation import trains
from engines.algorithms.spec import Algorithm
from engines.rollout.producer import Sampled, trainable
from engines.rollout.protocols import PolicyTrainer, PublishedWeights, ValueTrainer
from engines.rollout.records.gallery import to_score
from engines.step_inputs import StepInputs, TrainedStep, Values
from engines.types import Group, Sample
from engines.weight_versions import NO_VERSION
from infra.processes.coroutines import run_both
from infra.timeline import TRAINER, span

BeforePublish = Callable[[], Awaitable[object]]
AskTeachers = Callable[[Sequence[Sample]], Awaitable[Mapping[int, Values]]]
"""`StepInputs.teacher_logprobs` of these samples"""
_MIN_SHARE = 0.25
"""with fewer than this share of the required groups an update would be noise: it is skipped"""


async def at_once() -> None:
    """Nothing has to happen before a publish."""


@dataclass(slots=True)
class StepResult:
    """Says what one step did."""

    step: int
    version: int
    """policy version after it"""
    sampled: Sampled
    """between the step before and this one"""
    groups: Sequence[Group]
    """trained on"""
    wanted: int
    """groups that a step trains on, if there are so many"""
    trained: dict[str, float] = field(default_factory=dict)
    """the policy's metrics; empty when its update was skipped"""
    critic: dict[str, float] = field(default_factory=dict)
    """the critic's, where there is one"""
    logprobs: Mapping[tuple[str, int], Values] = field(
        default_factory=dict[tuple[str, int], "Values"]
    )
    """by rollout and branch, of some of the samples: the trainer's before the update"""
    dropped: Sequence[Group] = ()
    """groups that became too old while they waited"""
    waiting: int = 0
    """groups left to the next steps"""
    reused: int = 0
    """of the groups, those that an earlier step trained on as well"""
    buffer_fault: str = ""
    """what went wrong with the choice of the groups"""
    train_seconds: float = 0.0
    publish_seconds: float = 0.0
    pause_seconds: float = 0.0
    """of the publish, in which servers waited"""
    publish_bytes: int = 0

    @property
    def trained_on(self) -> Sequence[Group]:
        """Return its groups; none where the update was skipped."""
        return self.groups if self.trained or self.critic else ()

    @property
    def shown_groups(self) -> list[Group]:
        """By ticket: what was trained on, and what was sampled meanwhile and will not be. Of a
        group that still waits, the step that trains on it tells."""
        known = {id(group) for group in (*self.groups, *self.sampled.kept)}
        dropped = [group for group in self.sampled.groups if id(group) not in known]
        return sorted([*self.groups, *dropped], key=lambda group: group.ticket)

    @property
    def staleness(self) -> list[int]:
        """For each trainable sample: the training version minus its oldest token's version."""
        trained_at = self.version - bool(self.trained)
        groups = [trainable(group) for group in self.groups]
        return [trained_at - s.weight_versions.oldest for g in groups for s in g.samples]

    @property
    def token_lags(self) -> Counter[int]:
        """Tokens that can be trained on, by the training version minus their own."""
        trained_at = self.version - bool(self.trained)
        lags: Counter[int] = Counter()
        for sample in (s for group in self.groups for s in trainable(group).samples):
            for version, count in sample.weight_versions.runs:
                if version != NO_VERSION:
                    lags[trained_at - version] += count
        return lags


class Consumer:
    """One optimizer pass and one publish a step."""

    def __init__(
        self,
        *,
        trainer: PolicyTrainer,
        policy: PublishedWeights,
        algorithm: Algorithm,
        groups_per_step: int,
        critic: ValueTrainer | None = None,
        critic_only_steps: int = 0,
        before_publish: BeforePublish = at_once,
    ) -> None:
        """In the first `critic_only_steps` steps of the stage the policy stays as it is.

        `before_publish` is awaited while servers still have the weights that will be replaced.
        """
        self._trainer = trainer
        self._policy = policy
        self._critic = critic
        self._critic_only_steps = critic_only_steps
        self.ask_teachers: AskTeachers | None = None
        """where teachers are served"""
        self.algorithm = algorithm
        """of the next steps; its temperature is that of their rollouts"""
        self._wanted = groups_per_step
        self._before_publish = before_publish

    def _trainable(self, groups: Sequence[Group]) -> list[Sample]:
        """Empty where nothing of the batch has a token to train on."""
        kept, truncated = [trainable(group) for group in groups], self.algorithm.truncated
        is_any = any(trains(s, truncated) for group in kept for s in group.samples)
        return [s for group in kept for s in group.samples] if is_any else []

    async def step(self, step: int, groups: Sequence[Group], sampled: Sampled) -> StepResult:
        """One update and publish. Raises EngineError, AgreementError, TrainingStopped."""
        before = self._policy.version
        result = StepResult(step, before, sampled, groups, self._wanted)
        samples = self._trainable(groups)
        too_few = len(groups) < _MIN_SHARE * self._wanted
        if too_few or not samples:
            return result
        shown = to_score(samples, result.shown_groups)
        said = await self.ask_teachers(samples) if self.ask_teachers else {}
        inputs = StepInputs(
            samples, self.algorithm, True, before, shown=shown, teacher_logprobs=said
        )
        async with self._policy.changing():
            began = time.monotonic()
            with span(TRAINER, "train", step=step):
                trained, result.critic = await self._train(step, inputs)
                result.trained = trained.metrics
                result.logprobs = {
                    (samples[place].rollout_id, samples[place].branch): logprobs
                    for place, logprobs in trained.logprobs.items()
                }
            result.train_seconds = time.monotonic() - began
            if result.trained:
                await self._before_publish()
                with span(TRAINER, "publish", version=before + 1):
                    await self._publish(result)
        return result

    async def _train(self, step: int, inputs: StepInputs) -> tuple[TrainedStep, dict[str, float]]:
        """The policy's update, and the metrics of the critic's; empty where there was none."""
        if self._critic is None:
            return await self._trainer.rl_step(inputs), {}
        inputs = replace(inputs, values=await self._critic.values(inputs))
        kl = self.algorithm.kl
        if kl.coef and kl.place == "reward":
            inputs = replace(inputs, token_rewards=await self._trainer.token_rewards(inputs))
        learning = self._critic.critic_step(inputs)
        if step <= self._critic_only_steps:
            return TrainedStep(), await learning
        return await run_both(self._trainer.rl_step(inputs), learning)

    async def _publish(self, result: StepResult) -> None:
        began = time.monotonic()
        report = await self._policy.publish_next()
        result.version = self._policy.version
        result.publish_seconds = time.monotonic() - began
        result.pause_seconds = report.pause_seconds
        result.publish_bytes = report.written_bytes or report.bytes
