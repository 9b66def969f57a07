"""`reward`: a model learns to tell the better of two answers by a number (Bradley-Terry)."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from infra.store.manifest import StageWarning
from tasks.preference.body import learned
from tasks.preference.preference_data import PreferenceSupply, opened_preferences
from tasks.reward.spec import RewardSpec
from tasks.served.served_folder import add_head_bias
from tasks.sft.body import train_on
from tasks.sft.sft_record import SftRecord
from tasks.stage import StageContext, Stopped, require_inputs

if TYPE_CHECKING:
    from engines.megatron.ranks.trainer_group import TrainerGroup

_CURVES = ("accuracy", "margin", "chosen_reward", "rejected_reward")
_A_CALL = 64
"""held-out pairs that are judged at once"""


async def run(spec: RewardSpec, context: StageContext) -> dict[str, float]:
    """Train on the trunk of `inputs["model"]`; `context.out` becomes the folder of a sequence
    classifier.

    Raises InputError, EngineError, TrainingStopped (NaN); Stopped after a checkpoint.
    """
    require_inputs(context, ["model"])
    loss = spec.settings.loss
    record = RewardRecord(
        reporter=context.reporter,
        steps=spec.settings.steps,
        no_gradient="The rewards are so far apart that the loss is flat: take a smaller"
        " `optimizer.lr`",
        averaged=_CURVES,
    )
    metrics = await train_on(
        spec,
        context,
        record,
        lambda: RewardSupply(spec, context),
        lambda trainer, batches: trainer.reward_steps(loss, batches),
    )
    add_head_bias(context.out)
    return metrics


class RewardRecord(SftRecord):
    """That of `sft`, with what a person must know of what was learned."""

    def conclude(self) -> None:
        super().conclude()
        for warning in learned(self.averages):
            self._reporter.keep_warning(warning)


class RewardSupply(PreferenceSupply):
    """All pairs but those of the rows that are held out; the finished model judges these."""

    def __init__(self, spec: RewardSpec, context: StageContext) -> None:
        """Raises what `opened_preferences` raises."""
        settings, found = (
            spec.settings,
            opened_preferences(spec.settings.data, context, paired=True),
        )
        super().__init__(settings, spec.seed, found, context, paired=True, has_reference=False)
        rows = sorted(set(found.rows))
        count = min(round(settings.held_out * len(rows)), len(rows) - 1)
        out = set(random.Random(f"{spec.seed}/held-out").sample(rows, count))
        is_out = np.array([row in out for row in found.rows])
        self._held_out = np.flatnonzero(is_out).tolist()
        self._trained = np.flatnonzero(~is_out)
        self._judged: dict[str, float] = {}

    async def finish(self, trainer: TrainerGroup) -> None:
        """Have the finished model judge the held-out pairs. Raises Stopped."""
        pairs = [self._comparison(number) for number in self._held_out]
        rewards: list[float] = []
        for start in range(0, len(pairs), _A_CALL):
            if self._context.stop.requested:
                raise Stopped("stopped before the end of its own test: it is repeated")
            asked = [a for pair in pairs[start : start + _A_CALL] for a in pair.answers]
            rewards += await trainer.rewards(asked)
            self._context.reporter.progress(start, len(pairs), "held-out pairs judged")
        gaps = np.array(rewards[0::2]) - np.array(rewards[1::2])
        margins = [pair.margin for pair in pairs]
        longer = [len(p.answers[0].tokens) - len(p.answers[1].tokens) for p in pairs]
        self._judged = judged(gaps.tolist(), margins, longer)

    def conclusions(self) -> Iterator[StageWarning]:
        yield from super().conclusions()
        yield from length_bias(self._judged)

    def summary(self) -> Mapping[str, float]:
        return {**super().summary(), "held_out": float(len(self._held_out)), **self._judged}


def judged(
    gaps: Sequence[float], margins: Sequence[float], longer: Sequence[int]
) -> dict[str, float]:
    """Share of the pairs whose better answer has the larger reward: of all, of those with at most
    and above the median margin, and of those whose better answer has more or fewer tokens. A group
    without a pair has no share."""
    right, wide = np.array(gaps) > 0, np.array(margins, np.float64)
    more = np.array(longer, np.int64)
    groups = {"held_out_accuracy": np.ones(len(right), bool)}
    if len(right) and wide.max() > wide.min():
        middle = float(np.median(wide))
        groups |= {"accuracy_small_margin": wide <= middle, "accuracy_large_margin": wide > middle}
    groups |= {"accuracy_better_longer": more > 0, "accuracy_better_shorter": more < 0}
    return {name: float(right[are].mean()) for name, are in groups.items() if are.any()}


_FAR_APART = 0.2


def length_bias(found: Mapping[str, float]) -> Iterator[StageWarning]:
    """Where it judges pairs much better whose better answer is the longer, or the shorter one."""
    sides = [found.get(f"accuracy_better_{side}") for side in ("longer", "shorter")]
    if None in sides:
        return
    longer, shorter = (side or 0.0 for side in sides)
    if abs(longer - shorter) > _FAR_APART:
        yield StageWarning(
            what=f"it is right in {longer:.0%} of the held-out pairs whose better answer is longer,"
            f" and in {shorter:.0%} of the others",
            cause=f"it learned to prefer {'longer' if longer > shorter else 'shorter'} answers",
            advice="balance the data by length, or add a penalty on length where it is a reward",
            figures={"longer": longer, "shorter": shorter},
        )
