"""A recipe that trains on files of its own: where they are found, what `check` says of their rows,
what runs again, and how `preview` shows them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.checks.recipe_checks import cautions, check_recipe, length_problems, packing_notes
from flows.command.main import main
from flows.load import load_recipe
from flows.plan import PlannedStage
from flows.post_train import plan_post_train
from flows.reasons import planned_identities
from flows.recipe import Recipe
from infra.errors import InputError
from tasks.sft.spec import SftSpec
from tests.parts.chat_parts import random_base

pytestmark = pytest.mark.unit

GOOD = {"messages": [{"role": "user", "content": "12+30"}, {"role": "assistant", "content": "42"}]}
BAD = {"messages": [{"role": "user", "content": "12+30"}]}


def lines(*rows: Any) -> str:
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def recipe(folder: Path, data: Any, **sft: Any) -> Recipe:
    """A recipe file in a folder, whose paths are relative to it."""
    size = {"hidden_size": 64, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 16}
    written = {
        "name": "own-data",
        "base": {"random": {**size, "ffn_size": 64}},
        "experts": {
            "reasoning": {
                "domain": {
                    "curriculum": {"name": "reasoning"},
                    "rewards": [{"name": "math", "outcome": True}],
                },
                "path": [{"sft": {"steps": 3, "optimizer": {"lr": 2e-3}, "data": data, **sft}}],
            }
        },
        "evaluate": {"problems": 8, "samples": 2},
    }
    file = folder / "recipe.yaml"
    file.write_text(yaml.safe_dump(written))
    return load_recipe(str(file))


def planned(made: Recipe) -> list[PlannedStage]:
    return plan_post_train(made)


def digest(made: Recipe) -> str:
    return planned_identities(planned(made))["reasoning-sft"].digest


def test_a_stage_trains_on_files_beside_the_recipe_and_on_no_demonstrations(tmp_path: Path):
    (tmp_path / "chats.jsonl").write_text(lines(GOOD))
    made = recipe(tmp_path, {"files": ["*.jsonl"]})
    stage = next(stage for stage in planned(made) if stage.name == "reasoning-sft")
    assert isinstance(stage.spec, SftSpec)
    assert stage.spec.curriculum is None
    assert stage.inputs == {"model": "base"}
    assert stage.spec.message_files[0].files == [f"{tmp_path.resolve()}/*.jsonl"]
    check_recipe(made, planned(made))


def test_what_the_files_hold_runs_the_stage_again_and_where_they_are_does_not(tmp_path: Path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "chats.jsonl").write_text(lines(GOOD))
    data = {"files": ["chats.jsonl"]}
    one = digest(recipe(tmp_path / "one", data))
    assert digest(recipe(tmp_path / "two", data)) == one
    assert digest(recipe(tmp_path / "two", data | {"max_bad_share": 0.5})) == one
    assert digest(recipe(tmp_path / "two", data | {"format": "openai"})) != one
    (tmp_path / "two/chats.jsonl").write_text(lines(GOOD, GOOD))
    assert digest(recipe(tmp_path / "two", data)) != one


@pytest.mark.parametrize(
    ("rows", "data", "said"),
    [
        ([], {"files": ["chats.jsonl"]}, "path.0.sft.data.files: .*no row in"),
        ([GOOD], {"files": ["chat.jsonl"]}, "path.0.sft.data.files: no file matches"),
        ([GOOD, BAD, GOOD], {"files": ["chats.jsonl"]}, r"1 of all 3 rows \(1 messages\): chats"),
        ([BAD] * 9, {"files": ["chats.jsonl"], "max_bad_share": 0.9}, "9 of all 9 rows"),
        (
            [GOOD],
            [{"files": ["chats.jsonl"]}, {"files": ["chats.jsonl"], "format": "sharegpt"}],
            r"data\.1: cannot be trained on: .*has no `from`; it has role, content",
        ),
    ],
)
def test_check_refuses_files_that_the_stage_would_stop_at(
    tmp_path: Path, rows: list[Any], data: Any, said: str
):
    (tmp_path / "chats.jsonl").write_text(lines(*rows))
    made = recipe(tmp_path, data)
    with pytest.raises(InputError, match=said):
        check_recipe(made, planned(made))


def test_check_warns_of_a_few_bad_rows_and_refuses_what_is_not_read(tmp_path: Path):
    (tmp_path / "chats.jsonl").write_text(lines(GOOD, BAD, *[GOOD] * 60))
    made = recipe(tmp_path, {"files": ["chats.jsonl"]})
    check_recipe(made, planned(made))
    assert any("left out: 1 of the first 50" in line for line in cautions(made, planned(made)))
    (tmp_path / "more.jsonl").write_text(lines(GOOD | {"source": "web"}))
    made = recipe(tmp_path, {"files": ["more.jsonl"]})
    said = "read as messages (OpenAI); not read: source"
    assert any(said in line for line in cautions(made, planned(made)))


def mid_training(folder: Path, **settings: Any) -> Recipe:
    """A recipe that begins with it, and whose domain wants longer answers than the base reads."""
    (folder / "texts.jsonl").write_text(lines(*[{"text": "ant bed " * n} for n in range(1, 99)]))
    stage = {"steps": 3, "optimizer": {"lr": 1e-3}, "data": {"files": ["texts.jsonl"]}}
    written = {
        "name": "texts",
        "base": {"folder": str(random_base(folder / "base"))},
        "experts": {
            "needle": {
                "domain": {
                    "curriculum": {"name": "needle"},
                    "rewards": [{"name": "exact", "outcome": True}],
                    "max_new_tokens": 700,
                },
                "path": [
                    {"mid_training": {**stage, "batch_size": 2, **settings}},
                    {"rl": {"steps": 2, "optimizer": {"lr": 1e-3}}},
                ],
            }
        },
        "evaluate": {"problems": 8, "samples": 2},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(written))
    return load_recipe(str(folder / "recipe.yaml"))


def test_check_refuses_sequences_that_the_model_cannot_read_and_says_how_full_they_are(
    tmp_path: Path,
):
    made = mid_training(tmp_path)
    with pytest.raises(InputError) as refused:
        check_recipe(made, planned(made))
    said = str(refused.value)
    assert "path.0.mid_training.sequence_length: 4096 is more than the 512 positions" in said
    assert "max_new_tokens: is 700, but the model's context has 512 tokens" in said

    made = mid_training(tmp_path, rope={"positions": 1024, "yarn": True}, sequence_length=256)
    check_recipe(made, planned(made))
    (told,) = packing_notes(made, planned(made))
    assert "mid_training: its first 6 sequences of 256 tokens are 99.7% full" in told
    assert "0 are bad and left out; 3 steps take 1,532 tokens: data.0 about" in told
    # Bad rows behind those that are looked at first.
    (tmp_path / "texts.jsonl").write_text(lines(*[{"text": "ant"}] * 60, *[{"text": ""}] * 40))
    (told,) = packing_notes(made, planned(made))
    assert "path.0.mid_training: the stage will stop: " in told


def test_check_sees_the_positions_that_an_earlier_stage_gave_and_roles_that_never_speak(
    tmp_path: Path,
):
    (tmp_path / "chats.jsonl").write_text(lines(GOOD))
    chats = {"files": ["chats.jsonl"], "text": None, "roles": ["assistant", "tool"]}
    first = {"data": chats, "sequence_length": 64, "rope": {"positions": 1024, "yarn": True}}
    made = mid_training(tmp_path, **first)
    said = "mid_training.data.roles: tool: no message of all 1 rows is of such a role"
    assert any(said in line for line in cautions(made, planned(made)))
    longer = {"positions": 2048, "theta": 1e6}
    again = {"steps": 1, "optimizer": {"lr": 1e-3}, "data": {"files": ["/chats.jsonl"]}}
    second = {"mid_training": {**again, "sequence_length": 64, "rope": longer}}
    change = f"experts.needle.path.1={json.dumps(second)}"
    made = load_recipe(str(tmp_path / "recipe.yaml"), [change])
    (said,) = length_problems(planned(made))
    assert said.startswith("experts.needle.path.1.mid_training.rope.yarn: the model has rope type")


def test_preview_shows_documents(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    model, texts = random_base(tmp_path / "base"), tmp_path / "texts.jsonl"
    texts.write_text(lines({"body": "12+30", "url": "x"}, {"text": "no body"}))
    asked = ["--kind", "documents", "--columns", "text=body", "--model", str(model)]
    with pytest.raises(SystemExit) as ended:
        main(["preview", str(texts), *asked])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert "\u27e612+30<|endoftext|>\u27e7" in said
    assert "read as documents (body)\nnot read: url\n" in said
    assert "texts.jsonl:2: has no column body; it has text" in said
    texts.write_text(lines(GOOD))
    as_chats = ["--kind", "documents", "--model", str(model), "--roles"]
    for roles, shown in (
        ("all", "\u27e6<|user|>12+30<|assistant|>"),
        ("user assistant", "<|user|>\u27e612+30<|assistant|>\u27e7<think>"),
    ):
        with pytest.raises(SystemExit):
            main(["preview", str(texts), *as_chats, *roles.split()])
        assert shown in capsys.readouterr().out


def test_preview_shows_what_is_trained_on_and_counts_the_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    model = random_base(tmp_path / "base")
    chats = tmp_path / "chats.jsonl"
    chats.write_text(lines(GOOD, BAD, GOOD | {"source": "web"}))
    with pytest.raises(SystemExit) as ended:
        main(["preview", str(chats), "--model", str(model), "--rows", "1"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert said.count("⟦") == 1
    assert "<|user|>12+30<|assistant|><think></think>⟦42<|endoftext|>⟧" in said
    assert "3 rows read, all rows; 2 can be trained on, 1 is bad" in said
    assert "chats.jsonl:2: the assistant says nothing" in said
    assert "read as messages (OpenAI)\nnot read: source\n" in said
    with pytest.raises(SystemExit) as ended:
        main(["preview", str(chats), "--model", str(model), "--columns", "messages=chat"])
    assert ended.value.code == 1
    assert "bad: 3 columns" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main(["preview", str(chats), "--model", str(model), "--columns", "chat"])
    assert ended.value.code == 2
    assert "--columns chat: write column=name" in capsys.readouterr().err


def test_preview_shows_prompts_and_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    model = random_base(tmp_path / "base")
    prompts, pairs = tmp_path / "prompts.jsonl", tmp_path / "pairs.jsonl"
    prompts.write_text(lines({"question": "12+30", "answer": "42"}, {"question": ""}))
    one_thought = {"prompt": "1+1", "chosen": "<think>hm</think>2", "rejected": "3"}
    pairs.write_text(lines({"prompt": "12+30", "chosen": "42", "rejected": "41"}, one_thought))

    def said(*arguments: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["preview", *arguments, "--model", str(model)])
        assert ended.value.code == 0
        return capsys.readouterr().out

    shown = said(str(prompts), "--kind", "prompts")
    assert "<|user|>12+30<|assistant|><think></think>\n" in shown
    assert "reference {'answer': '42'}" in shown
    assert "read as question, reference answer\n" in shown
    assert "bad: 1 messages" in shown
    shown = said(str(pairs), "--kind", "pairs")
    assert "pairs.jsonl:1 \u00b7 chosen" in shown
    assert "\u27e642<|endoftext|>\u27e7" in shown
    assert "\u27e641<|endoftext|>\u27e7" in shown
    assert "pairs.jsonl:2: chosen and rejected follow different prompts" in shown
