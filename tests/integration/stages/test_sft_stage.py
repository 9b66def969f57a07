"""The supervised stage on the real trainer: it learns, and a stopped one continues as if not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from engines.chat import Chat
from infra.errors import TrainingStopped
from tasks.mid_training import body as mid_training
from tasks.mid_training.spec import MidTrainingSpec
from tasks.sft.body import run
from tasks.sft.spec import SftSpec
from tasks.stage import StageContext, Stopped
from tests.parts.chat_parts import random_base
from tests.parts.stage_parts import ListReporter, stage_context

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("cluster")]

STEPS, STOP_AT = 30, 12


class StoppingReporter(ListReporter):
    """Asks the stage to stop when a step is reported, as SIGTERM would."""

    context: StageContext

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        super().metrics(step, values)
        self.context.stop.requested |= step == STOP_AT


def spec() -> SftSpec:
    return SftSpec.model_validate(
        {
            "settings": {
                "steps": STEPS,
                "batch_size": 8,
                "demonstrations": 64,
                "optimizer": {"lr": 2e-3, "warmup_steps": 3, "decay": "cosine"},
                "checkpoint_every": 10,
            },
            "curriculum": {"name": "general"},
        }
    )


def losses(context: StageContext) -> list[float]:
    assert isinstance(context.reporter, ListReporter)
    return [context.reporter.steps[step]["loss"] for step in sorted(context.reporter.steps)]


async def test_it_learns_and_a_stopped_run_ends_with_the_same_weights(tmp_path: Path) -> None:
    model = random_base(tmp_path / "base")
    whole = stage_context(tmp_path, "whole", {"model": model})
    metrics = await run(spec(), whole)
    seen = losses(whole)
    assert len(seen) == STEPS
    assert np.mean(seen[-5:]) < 0.7 * np.mean(seen[:5])
    assert metrics["loss"] == pytest.approx(np.mean(seen[-20:]))
    assert metrics["train_tokens_per_s"] > 0

    cut = stage_context(tmp_path, "cut", {"model": model})
    reporter = StoppingReporter()
    reporter.context, cut.reporter = cut, reporter
    with pytest.raises(Stopped):
        await run(spec(), cut)
    rest = stage_context(tmp_path, "cut", {"model": model})
    await run(spec(), rest)
    assert isinstance(rest.reporter, ListReporter)
    steps = reporter.steps | rest.reporter.steps
    assert [steps[step]["loss"] for step in sorted(steps)] == seen
    assert min(rest.reporter.steps) == 11, "the steps of its last checkpoint are reported again"

    one, two = weights(whole), weights(rest)
    assert one.keys() == two.keys() == weights_of(model).keys()
    for name, tensor in one.items():
        np.testing.assert_array_equal(two[name], tensor, err_msg=name)
    assert Chat.load(whole.out).stop_token_ids == Chat.load(model).stop_token_ids


async def test_it_learns_files_of_its_own_and_a_rows_weight_is_a_factor_of_its_loss(
    tmp_path: Path,
) -> None:
    model = random_base(tmp_path / "base")
    asked = [{"role": "user", "content": "color of ant"}]
    said = [{"role": "assistant", "content": color} for color in ("red", "blue", "green", "black")]
    rows = [{"messages": [*asked, each], "half": 0.5, "whole": 1} for each in said]
    (tmp_path / "chats.jsonl").write_text("\n".join(map(json.dumps, rows)))
    seen: dict[str, list[float]] = {}
    for column in ("whole", "half"):
        data = {"files": [f"file://{tmp_path}/*.jsonl"], "columns": {"weight": column}}
        settings = {"steps": 4, "batch_size": 4, "optimizer": {"lr": 2e-3}, "data": data}
        context = stage_context(tmp_path, column, {"model": model})
        metrics = await run(SftSpec.model_validate({"settings": settings}), context)
        assert (metrics["rows"], metrics["rows_read"], metrics["bad_rows"]) == (4, 4, 0)
        seen[column] = losses(context)
    assert seen["whole"][-1] < seen["whole"][0]
    assert seen["half"][0] == pytest.approx(seen["whole"][0] / 2, rel=1e-6)


async def test_mid_training_that_was_stopped_ends_with_the_same_weights(tmp_path: Path) -> None:
    model = random_base(tmp_path / "base")
    texts = [{"text": " ".join(["ant", "bed", "cat"] * (number % 9 + 1))} for number in range(90)]
    (tmp_path / "texts.jsonl").write_text("\n".join(map(json.dumps, texts)))
    made = MidTrainingSpec.model_validate(
        {
            "settings": {
                "steps": STOP_AT + 4,
                "sequence_length": 256,
                "batch_size": 2,
                "optimizer": {"lr": 2e-3},
                "data": {"files": [f"{tmp_path}/texts.jsonl"]},
                "checkpoint_every": STOP_AT,
            }
        }
    )
    whole = stage_context(tmp_path, "whole", {"model": model})
    metrics = await mid_training.run(made, whole)
    assert metrics["packing_efficiency"] > 0.98
    assert metrics["train_tokens"] == metrics["tokens_of_data_0"]
    assert losses(whole)[-1] < losses(whole)[0]

    cut = stage_context(tmp_path, "cut", {"model": model})
    cut.reporter = reporter = StoppingReporter()
    reporter.context = cut
    with pytest.raises(Stopped):
        await mid_training.run(made, cut)
    rest = stage_context(tmp_path, "cut", {"model": model})
    resumed = await mid_training.run(made, rest)
    assert resumed["tokens_of_data_0"] == metrics["tokens_of_data_0"]
    one, two = weights(whole), weights(rest)
    for name, tensor in one.items():
        np.testing.assert_array_equal(two[name], tensor, err_msg=name)


def weights(context: StageContext) -> dict[str, Any]:
    return weights_of(context.out)


def weights_of(folder: Path) -> dict[str, Any]:
    return load_file(folder / "model.safetensors")


async def test_a_stage_whose_only_step_has_a_rate_of_zero_trains_nothing(tmp_path: Path) -> None:
    model = random_base(tmp_path / "base")
    optimizer = {"lr": 2e-3, "decay": "cosine", "min_lr_ratio": 0}
    settings = {"steps": 1, "batch_size": 4, "demonstrations": 8, "optimizer": optimizer}
    once = SftSpec.model_validate({"settings": settings, "curriculum": {"name": "general"}})
    with pytest.raises(
        TrainingStopped, match=r"no weight differs from the one.*, or 0\. Raise.*min_lr_ratio"
    ):
        await run(once, stage_context(tmp_path, "once", {"model": model}))
