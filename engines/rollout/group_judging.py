"""What rewards of whole groups add, once all rollouts of a problem are over.

    rollouts, each judged by itself ──▶ those that ended or were cut off, together ──▶ new rewards

The journal keeps rollouts as they were before: a resumed stage has the group judged again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from engines.rollout.drivers.driver import LiveDomain
from engines.rollout.protocols import Judgement
from engines.types import VETOED, Rollout, Sample, Status
from infra.json_text import reason_text
from infra.timeline import JUDGES, span

_JUDGED = (Status.COMPLETED, Status.TRUNCATED)


async def judge_together(domain: LiveDomain, rollouts: Sequence[Rollout]) -> list[Rollout]:
    """The rollouts of one problem with what the domain's rewards of groups say. Where these give no
    verdict, all that they were asked about become failed ones."""
    asked = [rollout for rollout in rollouts if rollout.status in _JUDGED]
    if domain.group_judge is None or not asked:
        return list(rollouts)
    with span(JUDGES, asked[0].samples[0].group_id):
        judgements = await domain.group_judge.judge([rollout.transcript for rollout in asked])
    said = {rollout.id: each for rollout, each in zip(asked, judgements, strict=True)}
    return [_with(rollout, said.get(rollout.id)) for rollout in rollouts]


def _with(rollout: Rollout, judgement: Judgement | None) -> Rollout:
    if judgement is None:
        return rollout
    samples = tuple(_judged(sample, judgement) for sample in rollout.samples)
    return Rollout(samples, rollout.transcript)


def _judged(sample: Sample, judgement: Judgement) -> Sample:
    if judgement.failed:
        failed, reason = Status.FAILED, reason_text(judgement.reason)
        return replace(
            sample,
            status=failed,
            reason=reason,
            reward=0.0,
            rewards={},
            turn_rewards=[],
            reward_weights={},
        )
    return replace(
        sample,
        reward=sample.reward + (0.0 if VETOED in sample.rewards else judgement.reward),
        rewards={**sample.rewards, **judgement.breakdown},
        reward_weights={**sample.reward_weights, **judgement.weights},
        reason="; ".join(filter(None, [sample.reason, reason_text(judgement.reason)])),
    )
