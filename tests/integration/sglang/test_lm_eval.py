"""lm-eval's own program on tasks of a folder, with a real server's log-probabilities."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from infra.code.identity import CodeIdentity
from infra.errors import InputError
from infra.store.store import Store
from tasks.durable.stage_identity import StoredResults
from tasks.lm_eval.body import ordered, run, scores_of
from tasks.lm_eval.lm_eval_harness import Order
from tasks.lm_eval.spec import LmEvalSpec, installed_version
from tasks.stage import StageContext
from tests.integration.conftest import SglangPair
from tests.parts.lm_eval_tasks import ROWS, write_tasks
from tests.parts.stage_parts import ListReporter, stage_context

pytest.importorskip("lm_eval", reason="the optional extra lm-eval is not installed")
pytestmark = pytest.mark.integration
NO_CODE = CodeIdentity(hash="c", files={}, hooks={}, version="", commit="", dirty=False)


async def test_its_scores_are_those_of_the_models_own_probabilities(
    sglang_pair: SglangPair, tmp_path: Path
) -> None:
    folder = write_tasks(tmp_path / "own")
    context = stage_context(tmp_path, "lm-eval", {})

    def asking(*tasks: str) -> Order:
        return Order(
            url=sglang_pair.router.url, model=str(sglang_pair.model), context=512, seed=0,
            tasks=tasks, folder=str(folder), num_fewshot=None, limit=5, chat=False,
            results=str(tmp_path / "results.json"),
        )  # fmt: skip

    found = await ordered(asking("own_choice", "own_answer"), "model", context)
    choices, answers = found["samples"]["own_choice"], found["samples"]["own_answer"]
    assert [len(choices), len(answers)] == [5, 5], "as many as the limit"
    assert isinstance(context.reporter, ListReporter)
    right = 0
    for sample in choices:
        row = ROWS[sample["document"]]
        expected = _logprobs(sglang_pair.model, row["question"], row["choices"])
        said = [float(logprob) for logprob, _ in sample["answer"]]
        assert said == pytest.approx(expected, abs=1e-3), "what transformers computes"
        right += int(max(range(3), key=lambda n, e=expected: e[n]) == row["label"])
    (accuracy, exact) = scores_of(found)
    assert (accuracy.name, accuracy.value) == ("own_choice acc", right / 5)
    assert (exact.name, exact.documents) == ("own_answer exact_match", 5)
    for sample in answers:
        assert sample["prompt"].count("Q: ") == 2, "one example before the question"
        assert all("\n" not in text for text in sample["answer"])

    with pytest.raises(InputError, match=r"no task 'own_chioce'\. Did you mean 'own_choice'"):
        await ordered(asking("own_chioce"), "model", context)


async def test_the_stage_scores_every_model_once(external_pair: SglangPair, tmp_path: Path) -> None:
    """On servers that are not ours, which need no Ray; a second attempt asks nothing again, nor
    does a further round of the same models."""
    inputs = {
        "base": external_pair.model,
        "twin": external_pair.model,
        "other": external_pair.other_model,
    }
    base = {"digest": "b"}
    records = {"base": base, "twin": base, "other": {"digest": "o"}}
    asked = {"tasks": ["own_answer"], "folder": str(write_tasks(tmp_path / "own")), "chat": True}
    settings = {**asked, "fleet": {"external": external_pair.urls}}
    spec = LmEvalSpec.model_validate({"settings": settings, "version": installed_version()})
    context = stage_context(tmp_path, "lm-eval", inputs, records=records)
    context.results = StoredResults(Store(str(tmp_path / "store")), NO_CODE)
    metrics = await run(spec, context)
    assert _asked(context) == ["base", "other"], "twins are one artifact"
    content = json.loads((context.out / "task_scores.json").read_text())
    assert set(content["scores"]) == set(inputs)
    for cell in content["cells"]:
        assert cell["documents"] == len(ROWS)
        assert cell["low"] <= cell["value"] <= cell["high"]
        assert metrics[f"task/{cell['model']}/{cell['task']}/{cell['metric']}"] == cell["value"]
    said = _said(context.out)
    assert said["base"] == said["twin"] != said["other"], "each model's own weights answered"

    again = stage_context(tmp_path, "lm-eval", inputs, records=records)
    assert (await run(spec, again))["models_recovered"] == 2.0
    assert _asked(again) == []
    assert _said(again.out) == said

    further = stage_context(
        tmp_path, "further", {"first": inputs["base"], "second": inputs["other"]},
        records={"first": base, "second": records["other"]},
    )  # fmt: skip
    further.results = context.results
    assert (await run(spec, further))["models_recovered"] == 0.0
    assert _asked(further) == [], "the models of the round before are in the store"
    assert _said(further.out) == {"first": said["base"], "second": said["other"]}


def _asked(context: StageContext) -> list[str]:
    """Models that the harness ran on."""
    logs = sorted(context.scratch.glob("lm-eval-*.log"))
    return [log.stem.removeprefix("lm-eval-") for log in logs]


def _said(out: Path) -> dict[str, list[Any]]:
    """Answers by model."""
    said: dict[str, list[Any]] = {}
    for line in (out / "answers.jsonl").read_text().splitlines():
        answer = json.loads(line)
        said.setdefault(answer["model"], []).append(answer["answer"])
    return said


def _logprobs(folder: Path, question: str, choices: list[str]) -> list[float]:
    """Of each choice after the question."""
    import torch
    from tokenizers import Tokenizer
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    encode = Tokenizer.from_file(str(folder / "tokenizer.json")).encode
    found: list[float] = []
    for choice in choices:
        begins = len(encode(question, add_special_tokens=False).ids)
        whole = encode(f"{question} {choice}", add_special_tokens=False).ids
        with torch.no_grad():
            logprobs = torch.log_softmax(model(torch.tensor([whole])).logits[0].float(), -1)
        found.append(sum(float(logprobs[n - 1, whole[n]]) for n in range(begins, len(whole))))
    return found
