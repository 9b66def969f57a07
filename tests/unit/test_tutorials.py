"""What tutorials have a reader write does what they say."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from curricula.prompt_files.prompt import read_prompt
from curricula.prompt_files.spec import PromptSource
from curricula.rows.columns import Columns
from curricula.rows.layouts import read_row
from engines.types import Message, Problem, Status, Transcript, Verdict
from flows.command.main import main
from tests.parts.doc_blocks import snippets

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
