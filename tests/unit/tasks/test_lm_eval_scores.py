"""Scores of lm-eval's results, and what `lm_eval` of a recipe plans."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import flows.plan
from flows.load import load_recipe
from flows.post_train import plan_post_train
from flows.reports.outcome import task_tables
from infra.errors import InputError
from tasks.durable.stage_identity import spec_content
from tasks.lm_eval.body import scores_file, scores_of
from tasks.lm_eval.spec import LmEvalSettings, LmEvalSpec
from tests.parts.chat_parts import (
    DEEPSEEK_V31,
    LLAMA,
    LLAMA_TOKENS,
    QWEN3,
    QWEN_TOKENS,
    R1_IN_HEADER,
    chat_folder,
)


def _sample(document: int, taken_by: str, **metrics: float) -> dict[str, Any]:
    return {"document": document, "filter": taken_by, "metrics": metrics}


FOUND = {
    "results": {
        "sums": {"exact_match,none": 0.75, "exact_match_stderr,none": 0.25},
        "texts": {"word_perplexity,none": 10.0, "word_perplexity_stderr,none": 1.0},
        "facts": {"f1,last": 0.4},
        "both": {"exact_match,none": 0.6, "exact_match_stderr,none": 0.1},
    },
    "samples": {
        "sums": [_sample(n, "none", exact_match=float(n != 2)) for n in (3, 2, 1, 0)],
        "texts": [_sample(0, "none"), _sample(1, "none")],
        "facts": [_sample(0, "last", f1=0.1), _sample(1, "last", f1=0.2)],
    },
    "higher_is_better": {"sums": {"exact_match": True}, "texts": {"word_perplexity": False}},
}


def test_each_metric_has_the_interval_that_its_documents_allow() -> None:
    sums, texts, facts, both = scores_of(FOUND)
    assert (sums.name, sums.value, sums.documents) == ("sums exact_match", 0.75, 4)
    assert sums.outcomes == [1.0, 1.0, 0.0, 1.0], "in the documents' order"
    # Wilson's of 3 in 4. Middle (0.75 + 3.8415 / 8) / (1 + 3.8415 / 4) = 0.62753, half of the
    # width 1.95996 / 1.96037 x sqrt(0.1875 / 4 + 3.8415 / 64) = 0.32690
    assert sums.low == pytest.approx(0.3006, abs=1e-4)
    assert sums.high == pytest.approx(0.9544, abs=1e-4)
    # No mean over documents: of lm-eval's own error, 10 -+ 1.96
    assert (texts.low, texts.high) == pytest.approx((8.040036, 11.959964))
    assert texts.outcomes == []
    assert (facts.name, facts.low, facts.high) == ("facts f1 last", None, None)
    assert [x.less_is_better for x in (sums, texts, facts, both)] == [False, True, False, False]
    assert (both.documents, both.low) == (0, pytest.approx(0.4040036)), "a group"


def test_the_file_has_tables_and_a_page_shows_them() -> None:
    content = scores_file({"base": scores_of(FOUND), "agent": scores_of(FOUND)})
    assert content["scores"]["agent"]["texts word_perplexity"] == 10.0
    assert "facts f1 last" not in content["intervals"]["base"]
    (table,) = task_tables(content)
    assert table.columns == ["sums exact_match", "texts word_perplexity", "facts f1 last",
                             "both exact_match"]  # fmt: skip
    assert table.rows["base"]["sums exact_match"].problems == 4
    assert task_tables({}) == []


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    (tmp_path / "own").mkdir()
    (tmp_path / "own/sums.yaml").write_text("task: sums\n")
    file = tmp_path / "mine.yaml"
    file.write_text("name: mine\nextends: cpu-smoke\nlm_eval: {tasks: [sums], folder: own}\n")
    return file


def _planned(recipe: Path) -> LmEvalSpec:
    plan = {stage.name: stage for stage in plan_post_train(load_recipe(str(recipe)))}
    assert plan["lm-eval"].inputs == plan["evaluate"].inputs
    spec = plan["lm-eval"].spec
    assert isinstance(spec, LmEvalSpec)
    return spec


def test_the_content_of_own_tasks_counts_and_not_their_place(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flows.plan, "installed_version", lambda: "0.4.13")
    spec = _planned(recipe)
    assert spec.settings.folder == str(tmp_path / "own"), "relative to the recipe"
    assert list(spec.problems()) == []
    first = spec_content(spec)
    (tmp_path / "own").rename(tmp_path / "moved")
    recipe.write_text(recipe.read_text().replace("own", "moved"))
    assert spec_content(_planned(recipe)) == first
    (tmp_path / "moved/sums.yaml").write_text("task: sums\nnum_fewshot: 2\n")
    assert spec_content(_planned(recipe)) != first
    monkeypatch.setattr(flows.plan, "installed_version", lambda: "0.5")
    assert spec_content(_planned(recipe))["version"] == "0.5"
    (tmp_path / "moved/sums.yaml").unlink()
    with pytest.raises(InputError, match="is no folder with files"):
        spec_content(_planned(recipe))


def test_a_missing_package_is_a_problem_with_a_remedy(
    recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flows.plan, "installed_version", lambda: "")
    (problem,) = _planned(recipe).problems()
    assert "pip install 'tributary[lm-eval]'" in problem


@pytest.mark.parametrize(
    ("template", "tokens", "eos", "end"),
    [
        (QWEN3, QWEN_TOKENS, "<|im_end|>", "<|im_start|>assistant\n<think>\n\n</think>\n\n"),
        (DEEPSEEK_V31, LLAMA_TOKENS, "<|eot|>", "<|start|>assistant<|end|></think>"),
        (R1_IN_HEADER, LLAMA_TOKENS, "<|eot|>", "<|start|>assistant<|end|><think>\n"),
        (LLAMA, LLAMA_TOKENS, "<|eot|>", "<|start|>assistant<|end|>\n\n"),
    ],
)
def test_questions_open_the_turn_as_the_template_s_mode_has_it(
    tmp_path: Path, template: str, tokens: list[str], eos: str, end: str
) -> None:
    pytest.importorskip("lm_eval")
    from tasks.lm_eval.lm_eval_harness import ServedModel

    folder = chat_folder(tmp_path, template, tokens, eos)
    (folder / "config.json").write_text("{}")
    model = ServedModel("http://127.0.0.1:1", folder, 64, 0, lambda done, total: None)
    text = model.apply_chat_template([{"role": "user", "content": "1 + 1?"}])
    assert text.endswith(end)


@pytest.mark.parametrize("adds_start", [True, False])
def test_texts_begin_as_those_of_lm_eval_s_own_models(tmp_path: Path, *, adds_start: bool) -> None:
    """Llama, Gemma and Mistral have tokenizers that add a token to the begin, Qwen has not."""
    pytest.importorskip("lm_eval")
    from lm_eval.models.huggingface import HFLM
    from tokenizers import Tokenizer
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    from tasks.lm_eval.lm_eval_harness import ServedModel

    folder = chat_folder(tmp_path, LLAMA, LLAMA_TOKENS, "<|eot|>")
    file = str(folder / "tokenizer.json")
    tokenizer = Tokenizer.from_file(file)
    start = tokenizer.token_to_id("<|begin|>")
    if adds_start:
        tokenizer.post_processor = TemplateProcessing(  # pyrefly: ignore[missing-attribute]
            single="<|begin|> $A", special_tokens=[("<|begin|>", start)]
        )
        tokenizer.save(file)
    theirs: Any = SimpleNamespace(
        tokenizer=PreTrainedTokenizerFast(tokenizer_file=file, bos_token="<|begin|>"),
        add_bos_token=None,
        prefix_token_id=start,
    )
    model = ServedModel("http://127.0.0.1:1", folder, 64, 0, lambda done, total: None)
    assert model.prefix_token_id == start
    for text in ("1 + 1", "<|begin|>1 + 1"):
        for special in (None, False):
            expected = HFLM.tok_encode(theirs, text, add_special_tokens=special)
            assert model.tok_encode(text, add_special_tokens=special) == expected
    assert model.tok_encode("1 + 1").count(start) == adds_start


def test_a_task_that_no_file_names_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    def problems(*tasks: str, folder: str = "") -> list[str]:
        settings = LmEvalSettings(tasks=list(tasks), folder=folder)
        return list(LmEvalSpec(settings=settings, version="0.4").problems())

    (found,) = problems("arc_easy", "mmlu", "arc_esay")
    assert found.startswith("tasks: no file of lm-eval's or of `folder` names 'arc_esay'; correct")
    (tmp_path / "mine.yaml").write_text("task: arc_esay\n")
    assert problems("arc_esay", folder=str(tmp_path)) == []
