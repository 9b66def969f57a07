"""`preference`: a policy learns which of two answers is better, or which are good.

all rows as tokens -> the reference's logprobs of all answers, once -> the loop of `sft`
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from engines.algorithms.preference_losses import has_reference, is_paired
from infra.store.manifest import StageWarning
from tasks.preference.preference_data import PreferenceSupply, opened_preferences
from tasks.preference.spec import PreferenceSpec
from tasks.sft.body import SftRecord, train_on
from tasks.stage import StageContext, require_inputs

_CURVES = (
    "accuracy", "margin", "chosen_reward", "rejected_reward", "chosen_logprob", "rejected_logprob",
    "chosen_drift", "rejected_drift",
)  # fmt: skip
_NOT_ABOVE = 0.55
"""accuracy up to which a run has learned nothing that shows: 0.5 is chance"""
_FAR = -0.2
"""nats a token that the better answers lost, from which it is a warning"""


async def run(spec: PreferenceSpec, context: StageContext) -> dict[str, float]:
    """Train `inputs["model"]`; `context.out` becomes an HF folder.

    Raises InputError, EngineError, TrainingStopped (NaN); Stopped after a checkpoint.
    """
    require_inputs(context, ["model", *([] if spec.settings.data else ["data"])])
    loss = spec.settings.loss
    record = PreferenceRecord(
        reporter=context.reporter,
        steps=spec.settings.steps,
        no_gradient="The answers are so far apart that the loss is flat: take a smaller"
        " `loss.beta`",
        averaged=_CURVES,
    )
    return await train_on(
        spec,
        context,
        record,
        lambda: _open(spec, context),
        lambda trainer, batches: trainer.preference_steps(loss, batches),
    )


def _open(spec: PreferenceSpec, context: StageContext) -> PreferenceSupply:
    settings = spec.settings
    compares = "pairs" if is_paired(settings.loss) else "verdicts"
    found = opened_preferences(settings.data, context, compares)
    reads = has_reference(settings.loss)
    return PreferenceSupply(settings, spec.seed, found, context, has_reference=reads)


class PreferenceRecord(SftRecord):
    """That of `sft`, with what a person must know of what was learned."""

    def conclude(self) -> None:
        super().conclude()
        for warning in learned(self.averages):
            self._reporter.keep_warning(warning)


def learned(last: Mapping[str, float]) -> Iterator[StageWarning]:
    """Warnings, by means over the last steps."""
    accuracy, margin = last.get("accuracy", 1.0), last.get("margin", 1.0)
    if accuracy <= _NOT_ABOVE or margin <= 0:
        yield StageWarning(
            what=f"the better answer has the larger reward in {accuracy:.0%} of the last"
            f" comparisons, by {margin:.2g} on average",
            cause="the stage learned next to nothing of the preferences",
            advice="train for more steps or with a larger `optimizer.lr`; look at some rows with"
            " `tributary preview --kind pairs`: are the better answers the chosen ones?",
            figures={"accuracy": accuracy, "margin": margin},
        )
    if (drift := last.get("chosen_drift", 0.0)) < _FAR:
        yield StageWarning(
            what=f"the better answers became less likely, too: by {-drift:.2g} nats a token",
            cause="the loss asks only that the worse ones fall further",
            advice="take a larger `loss.beta`, a smaller `optimizer.lr` or fewer steps; the loss"
            " `orpo` keeps the better answers likely",
            figures={"chosen_drift": drift},
        )
