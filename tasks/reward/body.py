"""`reward`: a model learns to say by a number how good an answer is."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from engines.algorithms.reward_losses import BradleyTerry, Compares, compares
from engines.families.common.model_config import read_config
from engines.families.common.registry import check_reward_model
from infra.store.manifest import StageWarning
from tasks.preference.body import learned
from tasks.preference.preference_data import PreferenceSupply, opened_preferences
from tasks.reward.held_out import HeldOutReport, held_out_warnings, report_of
from tasks.reward.spec import RewardSpec
from tasks.served.body import add_head_bias
from tasks.sft.body import SftRecord, train_on
from tasks.stage import StageContext, Stopped, require_inputs

if TYPE_CHECKING:
    from engines.megatron.ranks.trainer_group import TrainerGroup

_CURVES = ("accuracy", "margin", "chosen_reward", "rejected_reward", "error")
_A_CALL = 64
"""held-out comparisons that are judged at once"""


async def run(spec: RewardSpec, context: StageContext) -> dict[str, float]:
    """Train on the trunk of `inputs["model"]`; `context.out` becomes the folder of a sequence
    classifier.

    Raises InputError, EngineError, TrainingStopped (NaN); Stopped after a checkpoint.
    """
    require_inputs(context, ["model", *([] if spec.settings.data else ["data"])])
    check_reward_model(read_config(context.inputs["model"]))
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
    """All comparisons but those of held-out prompts, which the finished model judges."""

    def __init__(self, spec: RewardSpec, context: StageContext) -> None:
        """Raises what `opened_preferences` raises."""
        settings = spec.settings
        self._compares: Compares = compares(settings.loss)
        margins = settings.loss.margins if isinstance(settings.loss, BradleyTerry) else False
        found = opened_preferences(
            settings.data,
            context,
            self._compares,
            scores_are_margins=margins is True,
            shows_thoughts=False,
        )
        self._has_margins = margins is not False and any(found.margins)
        super().__init__(settings, spec.seed, found, context, has_reference=False)
        prompts = sorted(set(found.prompts))
        count = min(round(settings.held_out * len(prompts)), len(prompts) - 1)
        out = set(random.Random(f"{spec.seed}/held-out").sample(prompts, count))
        is_out = np.array([prompt in out for prompt in found.prompts])
        self._held_out = np.flatnonzero(is_out).tolist()
        self._trained = np.flatnonzero(~is_out)
        self._report = HeldOutReport(0, {})

    async def finish(self, trainer: TrainerGroup) -> None:
        """Have the finished model judge what is held out. Raises Stopped."""
        asked = [self._comparison(number) for number in self._held_out]
        rewards: list[float] = []
        for start in range(0, len(asked), _A_CALL):
            if self._context.stop.requested:
                raise Stopped("stopped before the end of its own test: it is repeated")
            answers = [a for each in asked[start : start + _A_CALL] for a in each.answers]
            rewards += await trainer.rewards(answers)
            self._context.reporter.progress(start, len(asked), "held-out comparisons judged")
        self._report = report_of(self._compares, asked, rewards)
        for name, text in self._report.files():
            (self._context.out / name).write_text(text)

    def conclusions(self) -> Iterator[StageWarning]:
        yield from super().conclusions()
        yield from held_out_warnings(self._report, has_margins=self._has_margins)

    def summary(self) -> Mapping[str, float]:
        return {**super().summary(), "held_out": float(len(self._held_out)), **self._report.figures}
