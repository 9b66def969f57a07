"""The stage of preferences on the real trainer: it learns, and resumes to the bit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from curricula.rows.conversation import Conversation
from engines.rollout.records.dataset import DATA_FILE, DistilledRow, write_dataset
from engines.types import Message, Problem
from tasks.message_files.render_rows import Renderer
from tasks.preference.body import run
from tasks.preference.spec import PreferenceSpec
from tasks.stage import StageContext, Stopped
from tests.parts.chat_parts import random_base
from tests.parts.stage_parts import ListReporter, stage_context

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("cluster")]

STEPS, STOP_AT = 8, 4
COLORS = ("red", "blue", "green", "black")


class StoppingReporter(ListReporter):
    """Asks the stage to stop when a step is reported, as SIGTERM would."""

    context: StageContext

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        super().metrics(step, values)
        self.context.stop.requested |= step == STOP_AT


def spec(folder: Path, loss: Any = "dpo", **settings: Any) -> PreferenceSpec:
    written = {
        "steps": STEPS,
        "batch_size": 4,
        "loss": loss,
        "data": {"files": [f"file://{folder}/*.jsonl"], "max_bad_share": 1},
        "optimizer": {"lr": 2e-3},
        "checkpoint_every": 3,
        **settings,
    }
    return PreferenceSpec.model_validate({"settings": written})


def write(folder: Path, rows: list[dict[str, Any]]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))


def metrics_of(context: StageContext) -> dict[int, dict[str, float]]:
    assert isinstance(context.reporter, ListReporter)
    unlike = {"seconds", "cpu_seconds", "tokens_per_s", "mfu"}
    return {
        step: {name: value for name, value in found.items() if name not in unlike}
        for step, found in context.reporter.steps.items()
    }


async def test_it_learns_and_a_stopped_run_ends_with_the_same_weights(tmp_path: Path) -> None:
    model = random_base(tmp_path / "base")
    pairs = [
        {"prompt": f"color of {what}", "chosen": better, "rejected": worse}
        for what in ("ant", "bee")
        for better, worse in zip(COLORS[:2], COLORS[2:], strict=True)
    ]
    write(tmp_path / "pairs", [*pairs, {"prompt": "color of cat", "chosen": "red"}])
    whole = stage_context(tmp_path, "whole", {"model": model})
    metrics = await run(spec(tmp_path / "pairs"), whole)
    seen = metrics_of(whole)
    assert seen[1]["loss"] == pytest.approx(np.log(2), abs=1e-4)
    assert seen[STEPS]["loss"] < seen[1]["loss"]
    assert seen[STEPS]["accuracy"] == 1
    assert (metrics["rows"], metrics["bad_rows"], metrics["comparisons"]) == (5, 1, 4)
    assert metrics["margin"] > 0
    assert isinstance(whole.reporter, ListReporter)
    assert any("rows.jsonl:5: has no column rejected" in said for said in whole.reporter.warnings)

    cut = stage_context(tmp_path, "cut", {"model": model})
    reporter = StoppingReporter()
    reporter.context, cut.reporter = cut, reporter
    with pytest.raises(Stopped):
        await run(spec(tmp_path / "pairs"), cut)
    rest = stage_context(tmp_path, "cut", {"model": model})
    await run(spec(tmp_path / "pairs"), rest)
    assert metrics_of(cut) | metrics_of(rest) == seen
    one, two = (load_file(each.out / "model.safetensors") for each in (whole, rest))
    for name, tensor in one.items():
        np.testing.assert_array_equal(two[name], tensor, err_msg=name)


async def test_answers_with_verdicts_are_learned_one_by_one(tmp_path: Path) -> None:
    model = random_base(tmp_path / "base")
    rows = [
        {"prompt": f"color of {what}", "completion": color, "label": color == "red"}
        for what in ("ant", "bee")
        for color in COLORS[:2]
    ]
    write(tmp_path / "verdicts", rows)
    context = stage_context(tmp_path, "kto", {"model": model})
    await run(spec(tmp_path / "verdicts", "kto", steps=4), context)
    seen = metrics_of(context)
    assert seen[4]["margin"] > 0
    assert seen[4]["baseline"] >= 0
    assert seen[4]["loss"] < seen[1]["loss"]


async def test_answers_of_a_distill_are_learned_as_a_person_s_rows_are(tmp_path: Path) -> None:
    model = random_base(tmp_path / "base")
    chat = Renderer.of_model(model)
    pairs = [(f"color of {what}", *COLORS[:2]) for what in ("ant", "bee", "cat", "dog")]
    rows = [{"prompt": asked, "chosen": best, "rejected": worst} for asked, best, worst in pairs]
    write(tmp_path / "pairs", rows)
    samples: list[DistilledRow] = []
    for asked, best, worst in pairs:
        for said, outcome in ((worst, 0.0), (best, 1.0), ("gray", 0.5)):
            problem, turns = (
                Problem(asked, "general", (Message("user", asked),)),
                (Message("assistant", said),),
            )
            shown = chat.render(Conversation((*problem.messages, *turns)))
            samples.append(
                DistilledRow(
                    shown.tokens, shown.loss_mask, problem, turns,
                    "general", "9f", 0, 0, {"outcome": outcome},
                )
            )  # fmt: skip
    (made := tmp_path / "made").mkdir()
    write_dataset(made / DATA_FILE, samples)
    by_hand = stage_context(tmp_path, "by-hand", {"model": model})
    await run(spec(tmp_path / "pairs", steps=2), by_hand)
    by_outcome = stage_context(tmp_path, "by-outcome", {"model": model, "data": made})
    await run(spec(tmp_path, steps=2, data=None), by_outcome)
    assert metrics_of(by_outcome) == metrics_of(by_hand)
