"""What the README and the tutorials have a reader write does what they say."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from curricula.prompt_files.prompt import read_prompt
from curricula.prompt_files.spec import PromptSource
from curricula.rows.conversation import Columns
from curricula.rows.layouts import read_row
from engines.types import Message, Problem, Status, Transcript, Verdict
from flows.checks.recipe_checks import check_recipe
from flows.command.main import main
from flows.load import load_recipe
from flows.post_train import plan_post_train
from tasks.base.random_model import write_random_model
from tasks.base.spec import RandomModel
from tests.parts.doc_blocks import snippets
from tests.parts.hub import hub_standin, use_hub

pytestmark = pytest.mark.unit


def test_rows_of_own_data_are_conversations_and_questions() -> None:
    chats, *files = snippets("tutorial-own-data.md", "json")
    for line in chats.splitlines():
        assert read_row(json.loads(line), Columns(), "auto").messages[-1].role == "assistant"
    source = PromptSource(files=["questions.jsonl"])
    found = [read_prompt(json.loads(line), source) for text in files for line in text.splitlines()]
    assert [each.reference["answer"] for each in found] == ["7", "3", "24"]


@pytest.fixture
def reward(tmp_path: Path) -> Path:
    file = tmp_path / "my_reward.py"
    file.write_text(snippets("tutorial-own-reward.md", "python")[0])
    return file


def test_the_reward_scores_as_it_says(reward: Path) -> None:
    names: dict[str, Any] = {}
    exec(reward.read_text(), names)
    judge: Callable[..., Verdict] = names["right_and_short"]

    def score(answer: str, **options: int) -> float:
        problem = Problem("p", "d", (Message("user", "?"),), {"answer": "7"})
        said = Transcript(problem, (Message("assistant", answer),), Status.COMPLETED, 9)
        return judge(said, **options).score

    assert score("There are 7.") == 1.0
    assert score("There are 8.") == 0.0
    assert score("so " * 24 + "7") == pytest.approx(0.75), "five words too many"
    assert score("so " * 90 + "7") == 0.5
    assert score("There are 7.", most=1) == pytest.approx(0.9)


def test_the_reward_holds_its_contract(
    reward: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path / "home"))
    name = f"{reward}:right_and_short"
    with pytest.raises(SystemExit) as ended:
        main(["test-hook", name, "--kind", "reward", "--curriculum", "reasoning"])
    assert not ended.value.code


def test_the_readmes_commands_make_recipes_that_can_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With rows as it says, its own reward, and a model of a stand-in for the hub; `make readme`
    runs the rest."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path / "home"))
    model = tmp_path / "model"
    model.mkdir()
    shape = RandomModel(hidden_size=32, layers=1, heads=2, kv_heads=1, head_dim=16, ffn_size=32,
                        max_length=1024)  # fmt: skip
    write_random_model(model, shape, [], seed=0)
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]
    rows = [{"question": f"12+{n}", "answer": f"{12 + n}"} for n in range(100)]
    (tmp_path / "chats.jsonl").write_text(json.dumps({"messages": turns}) + "\n")
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "my_rewards.py").write_text(snippets("README.md", "python")[0])
    lines = "".join(snippets("README.md", "bash")).splitlines()
    asked = [shlex.split(line, comments=True)[1:] for line in lines if " --data " in line]
    with hub_standin() as hub:
        use_hub(hub, monkeypatch, tmp_path / "hub-cache")
        hub.add_folder(asked[0][asked[0].index("--model") + 1].removeprefix("hf:"), model)
        for line in lines:
            if line.startswith("tributary preview"):
                with pytest.raises(SystemExit) as ended:
                    main(shlex.split(line, comments=True)[1:])
                assert not ended.value.code, capsys.readouterr().err
                assert "1 can be trained on" in capsys.readouterr().out
        for words in asked:
            words = ["./model" if word == "support/chats-sft" else word for word in words]
            with pytest.raises(SystemExit) as ended:
                main([*words, "--print"])
            assert not ended.value.code, capsys.readouterr().err
            (tmp_path / "made.yaml").write_text(
                yaml.safe_dump(yaml.safe_load(capsys.readouterr().out))
            )
            recipe = load_recipe(str(tmp_path / "made.yaml"))
            check_recipe(recipe, plan_post_train(recipe))
    assert [words[0] for words in asked] == ["sft", "rl", "rl"]
