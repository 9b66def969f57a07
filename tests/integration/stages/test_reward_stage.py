"""The stage of reward models on the real trainer: what it learns, exports and says of itself."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from engines.chat import Chat
from engines.types import Message, Problem
from tasks.reward.body import run
from tasks.reward.spec import RewardSpec
from tasks.stage import Stopped
from tests.integration.stages.test_preference_stage import StoppingReporter, metrics_of
from tests.parts.chat_parts import random_base
from tests.parts.stage_parts import stage_context

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("cluster")]

STEPS = 8


async def test_it_learns_resumes_to_the_bit_and_is_a_classifier(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForSequenceClassification

    model = random_base(tmp_path / "base")
    rows = [
        {"prompt": f"color of {what}", "chosen": "red", "rejected": other, "margin": margin}
        for what in ("ant", "bee", "cat", "dog", "eel")
        for other, margin in (("black and blue", 0.1), ("green", 0.3))
    ]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    settings = {
        "steps": STEPS, "batch_size": 4, "optimizer": {"lr": 2e-3}, "checkpoint_every": 3,
        "held_out": 0.4, "data": {"files": [f"file://{tmp_path}/pairs.jsonl"]},
    }  # fmt: skip
    spec = RewardSpec.model_validate({"settings": settings})
    whole = stage_context(tmp_path, "whole", {"model": model})
    metrics = await run(spec, whole)
    seen = metrics_of(whole)
    drawn_apart = -np.log(1 / (1 + np.exp(-np.array([-0.1, -0.3]))))
    assert drawn_apart.min() < seen[1]["loss"] < drawn_apart.max(), "the head starts at zero"
    assert seen[STEPS]["accuracy"] == 1
    assert (metrics["comparisons"], metrics["held_out"]) == (6, 4)
    assert metrics["held_out_accuracy"] == 1

    cut = stage_context(tmp_path, "cut", {"model": model})
    reporter = StoppingReporter()
    reporter.context, cut.reporter = cut, reporter
    with pytest.raises(Stopped):
        await run(spec, cut)
    rest = stage_context(tmp_path, "cut", {"model": model})
    assert (await run(spec, rest))["held_out_accuracy"] == 1
    assert metrics_of(cut) | metrics_of(rest) == seen
    one, two = (load_file(each.out / "model.safetensors") for each in (whole, rest))
    assert "lm_head.weight" not in one
    for name, tensor in one.items():
        np.testing.assert_array_equal(two[name], tensor, err_msg=name)

    engine = AutoModelForSequenceClassification.from_pretrained(whole.out).float().eval()
    engine.config.pad_token_id = -1  # read after the very last token
    chat = Chat.load(whole.out)

    def reward(answer: str) -> float:
        problem = Problem("p", "d", (Message("user", "color of fly"),))
        ids, _ = chat.training_ids(problem, [Message("assistant", answer)])
        with torch.no_grad():
            return float(engine(torch.tensor([ids])).logits[0])

    assert engine.config.id2label == {0: "reward"}
    assert reward("red") > reward("green")
