"""An `rl` stage after a `mine` that found nothing: the model goes on as it is."""

from __future__ import annotations

import shutil

from engines.rollout.records.dataset import read_admitted
from engines.rollout.records.gallery import ROLLOUTS_FILE
from engines.rollout.records.take_log import TAKES_FILE
from infra.store.manifest import StageWarning
from tasks.mine.spec import MINED
from tasks.stage import StageContext


def is_nothing_mined(context: StageContext) -> bool:
    """Whether the stage is given the problems of a `mine`, and there are none."""
    return MINED in context.inputs and not read_admitted(context.inputs[MINED])


def pass_on(context: StageContext) -> dict[str, float]:
    """Copy the model, without what another stage did to make it, and say so."""
    for file in sorted(context.inputs["model"].iterdir()):
        if file.is_file() and file.name not in (ROLLOUTS_FILE, TAKES_FILE):
            shutil.copyfile(file, context.out / file.name)
    context.reporter.keep_warning(
        StageWarning(
            what="it trained nothing: its model is the one before it",
            cause="the `mine` before it found no problem whose rollouts show a pathology",
            advice="leave both stages out, or keep more rollouts before `mine`",
        )
    )
    return {"steps": 0.0}
