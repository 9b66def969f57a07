"""What `check` says of thinking: one line a domain, and refusals of what a template cannot do."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.checks.data import message_file_problems
from flows.checks.recipe_checks import cautions, check_recipe, notes
from flows.load import load_recipe
from flows.post_train import plan_post_train
from infra.errors import InputError
from tests.parts.chat_parts import DEEPSEEK_V31, LLAMA, QWEN3, R1_IN_HEADER, R1_IN_TEXT
from tests.parts.tiny import tiny_model

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("own_home")]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"), num_hidden_layers=1)


def with_own_tokens(template: str) -> str:
    own = {"<|start|>": "<|user|>", "<|im_start|>": "<|user|>"}
    own |= dict.fromkeys(("<|end|>", "<|eot|>", "<|im_end|>"), "<|endoftext|>")
    for theirs, ours in own.items():
        template = template.replace(theirs, ours)
    return template


def said(
    model: Path,
    folder: Path,
    template: str,
    curriculum: dict[str, Any],
    *,
    reward: str = "math",
    solved: bool = False,
    sft: bool = False,
    brief: dict[str, Any] | None = None,
    **settings: Any,
) -> list[str]:
    """Notes and warnings of `check`, for one domain. Raises InputError. `brief`: of a reward for
    length; `settings`: of the stage."""
    shutil.copytree(model, folder / "model")
    (folder / "model" / "chat_template.jinja").write_text(with_own_tokens(template))
    rows: list[dict[str, Any]] = [{"question": f"{n}+1", "answer": n + 1} for n in range(200)]
    if solved:
        curriculum["options"]["sources"]["columns"] = {
            "prompt": "question", "reference": "answer", "solution": "solution",
        }  # fmt: skip
        rows = [row | {"solution": f"\\boxed{{{row['answer']}}}"} for row in rows]
    (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    kind = "sft" if sft else "rl"
    length = {"name": "length", "options": {"budget": 9, "margin": 3}}
    rewards: list[dict[str, Any]] = [{"name": reward, "outcome": True}]
    rewards += [length | brief] if brief else []
    written = {
        "name": "own",
        "base": {"folder": str(folder / "model")},
        "experts": {
            "sums": {
                "domain": {
                    "curriculum": curriculum,
                    "rewards": rewards,
                },
                "path": [{kind: {"steps": 2, "optimizer": {"lr": 2e-4}, **settings}}],
            }
        },
        "evaluate": {"problems": 2, "samples": 2},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(written))
    recipe = load_recipe(str(folder / "recipe.yaml"))
    plan = plan_post_train(recipe)
    check_recipe(recipe, plan)
    return [*notes(recipe, plan), *cautions(recipe, plan)]


def files(**options: Any) -> dict[str, Any]:
    return {"name": "files", "options": {"sources": {"files": ["sums.jsonl"]}, **options}}


def test_rows_without_a_thought_are_counted_where_every_turn_opens_one(
    model: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(model, tmp_path / "model")
    (folder / "chat_template.jinja").write_text(with_own_tokens(R1_IN_HEADER))
    asked = {"role": "user", "content": "1+1"}
    rows = [
        {"role": "assistant", "content": f"{thought}2"} for thought in ("", "", "<think>R</think>")
    ]
    lines = "".join(json.dumps({"messages": [asked, row]}) + "\n" for row in rows)
    (tmp_path / "chats.jsonl").write_text(lines)
    sft = {"steps": 2, "optimizer": {"lr": 2e-4}, "data": {"files": ["chats.jsonl"]}}
    written = {
        "name": "own",
        "base": {"folder": str(folder)},
        "experts": {"own": {"path": [{"sft": sft}]}},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(written))
    recipe = load_recipe(str(tmp_path / "recipe.yaml"))
    found = list(cautions(recipe, plan_post_train(recipe)))
    assert [line for line in found if "2 of 3 rows show no thought" in line], found


@pytest.mark.parametrize(
    ("template", "options", "expected"),
    [
        (R1_IN_HEADER, {}, "thinking is on by the template"),
        (R1_IN_HEADER, {"thinking": True}, "thinking is on as asked for"),
        (R1_IN_TEXT, {}, "thinking is left to the model by the template"),
        (QWEN3, {}, "thinking is off by the template"),
        (QWEN3, {"thinking": True}, "thinking is on as asked for"),
        (DEEPSEEK_V31, {"thinking": True}, "thinking is on as asked for"),
        (DEEPSEEK_V31, {"thinking": False}, "thinking is off as asked for"),
        (LLAMA, {}, "thinking is left to the model by the template"),
    ],
)
def test_check_says_the_decision_of_each_domain(
    model: Path, tmp_path: Path, template: str, options: dict[str, Any], expected: str
) -> None:
    lines = said(model, tmp_path, template, files(**options), solved=True)
    (decision,) = [line for line in lines if "thinking is" in line]
    assert decision.startswith(f"domain sums: {expected} (chat_template.jinja ")
    assert not [line for line in lines if "gives 0 to all" in line]


def test_what_a_template_cannot_do_is_refused_by_name(model: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        said(model, tmp_path, R1_IN_HEADER, files(thinking=False))
    assert "experts.sums.domain.curriculum: files: `thinking: false`" in str(refused.value)
    assert "chat_template.jinja opens a thought in every turn" in str(refused.value)
    assert "leave `thinking` out or set it to true" in str(refused.value)


@pytest.mark.parametrize("template", [LLAMA, R1_IN_HEADER, QWEN3])
def test_answers_without_thinking_need_a_switch(model: Path, tmp_path: Path, template: str) -> None:
    folder = shutil.copytree(model, tmp_path / "model")
    (folder / "chat_template.jinja").write_text(with_own_tokens(template))
    (tmp_path / "chats.jsonl").write_text(json.dumps({"prompt": "1+1", "completion": "2"}) + "\n")
    data = {"files": ["chats.jsonl"]}
    sft = {"steps": 2, "optimizer": {"lr": 2e-4}, "data": data, "nothink_share": 0.25}
    experts = {"own": {"path": [{"sft": sft}]}}
    written = {"name": "own", "base": {"folder": str(folder)}, "experts": experts}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(written))
    recipe = load_recipe(str(tmp_path / "recipe.yaml"))
    found = [*message_file_problems(recipe, plan_post_train(recipe))]
    assert ["nothink_share needs a chat template" in line for line in found] == (
        [] if template == QWEN3 else [True]
    )
    assert all(line.startswith("experts.own.path.") for line in found)


@pytest.mark.parametrize(
    ("template", "options", "refused"),
    [
        (QWEN3, {"thinking": True}, ""),
        (QWEN3, {}, "nothink_share: no problem of sums asks for a thought"),
        (LLAMA, {"thinking": True}, "nothink_share: nothink_share needs a chat template"),
    ],
)
def test_both_modes_in_one_stage_need_thoughts_and_a_switch(
    model: Path, tmp_path: Path, template: str, options: dict[str, Any], refused: str
) -> None:
    def found(share: float) -> list[str]:
        brief = {"thinking": False}
        folder = tmp_path / str(share)
        asked = files(**options)
        return said(model, folder, template, asked, solved=True, brief=brief, nothink_share=share)

    if refused:
        with pytest.raises(InputError, match=refused):
            found(0.5)
        return
    idle = [sum("length judges nothing" in line for line in found(share)) for share in (0.5, 0)]
    assert idle == [0, 1]


def test_a_curriculum_that_says_nothing_follows_the_template(model: Path, tmp_path: Path) -> None:
    """Built-in curricula ask for no mode: a model that always thinks thinks there, too."""
    lines = said(model, tmp_path, R1_IN_HEADER, {"name": "general"}, reward="format")
    assert any(line.startswith("domain sums: thinking is on by the template") for line in lines)


def test_a_thought_that_only_the_model_can_open_is_cautioned(model: Path, tmp_path: Path) -> None:
    lines = said(model, tmp_path, LLAMA, files(thinking=True))
    assert [line for line in lines if "knows no thoughts: answers count only" in line]


def test_a_thought_that_the_template_drops_is_refused(model: Path, tmp_path: Path) -> None:
    """Where a stage trains on what rows show."""
    curriculum = files(thinking=True, shares={"sft": 0.5})
    with pytest.raises(InputError, match="drops the turn's thought"):
        said(model, tmp_path, LLAMA, curriculum, solved=True, sft=True)


BUDGET = [{"temperature": 0.6, "thought_tokens": 8}]


def test_a_thought_budget_is_refused_only_where_no_domain_thinks() -> None:
    recipe = load_recipe("cpu-smoke", [f"evaluate.sampling={json.dumps(BUDGET)}"])
    check_recipe(recipe, plan_post_train(recipe))
    off = "experts.reasoning.domain.curriculum.options={thinking: false}"
    recipe = load_recipe("cpu-smoke", [f"evaluate.sampling={json.dumps(BUDGET)}", off])
    with pytest.raises(InputError, match=r"t0\.6-think8: the base has no thoughts in any domain"):
        check_recipe(recipe, plan_post_train(recipe))
