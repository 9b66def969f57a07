"""`tributary init`: what it writes is whole, passes its own tests, and is accepted as it is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from flows.catalog import plan_of
from flows.checks.hook_checks import own_files
from flows.command.main import main
from flows.command.recipes import FILES, STARTER
from flows.load import load_recipe
from flows.reasons import planned_identities

pytestmark = pytest.mark.unit

PAGE = Path(__file__).parents[4] / "docs/add-an-expert.md"


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "path", [*sys.path])  # hooks of another home are not found after


def _exit_code(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    return int(caught.value.code or 0)


def _own_tests_pass(folder: Path, *, with_plugins: bool = False) -> bool:
    """As the user runs them: another process, from another folder; plugins take it a second."""
    pytest_run = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)]
    env = os.environ | ({} if with_plugins else {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"})
    run = subprocess.run(pytest_run, cwd="/", env=env, capture_output=True, text=True, timeout=120)
    assert "no tests ran" not in run.stdout
    assert run.returncode in (0, 1), run.stdout + run.stderr
    return run.returncode == 0


def test_the_starter_is_what_the_folder_of_the_package_holds() -> None:
    there = {file.name for file in STARTER.iterdir() if file.name != "__pycache__"}
    assert there - {".pytest_cache"} == {*FILES, "__init__.py"}


def test_a_new_folder_is_written_tested_and_accepted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "new" / "mine"
    assert _exit_code("init", str(folder)) == 0
    assert {file.name for file in folder.iterdir()} == set(FILES)
    said = capsys.readouterr().out
    for command in ("tributary check", "tributary up", "tributary run"):
        assert f"  {command}" in said
    assert f"pytest {folder}" in said
    assert f"tributary run {folder / 'recipe.yaml'}" in said
    assert _own_tests_pass(folder, with_plugins=True)
    assert _exit_code("check", str(folder / "recipe.yaml")) == 0
    shown = capsys.readouterr().out
    assert "my-domain-rl" in shown
    assert "warning:" not in shown


def test_what_is_printed_can_be_typed_where_only_the_command_is_on_the_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert _exit_code("init", str(tmp_path)) == 0
    (program,) = re.findall(r"^  (\S*pytest) ", capsys.readouterr().out, re.M)
    assert subprocess.run([program, "--version"], timeout=60).returncode == 0


def _with_task(folder: Path, block: str) -> None:
    """Put what a page shows of each file in the place of the first part of that file."""
    parts = re.split(r"^# (my_\w+\.py)\n", block, flags=re.M)
    for name, own in zip(parts[1::2], parts[2::2], strict=True):
        file = folder / name
        text = file.read_text()
        begin = next(m for m in ("ITEMS = (", "def answer_call", "def right_answer") if m in text)
        before, after = text.split(begin)
        rest = f"# 2. {after.split('# 2. ')[1]}" if "# 2. " in after else ""
        file.write_text(f"{before}{own.rstrip()}\n\n\n{rest}")


def test_the_task_of_the_page_is_short_and_the_same_tests_hold_for_it(tmp_path: Path) -> None:
    assert _exit_code("init", str(tmp_path)) == 0
    recipe = tmp_path / "recipe.yaml"
    own = next(b for b in PAGE.read_text().split("```python\n") if "def draw(" in b).split("```")[0]
    _with_task(tmp_path, own)
    recipe.write_text(recipe.read_text().replace("max_turns: 2", "max_turns: 1"))
    assert f"takes {len(own.splitlines()) - 3} lines and `max_turns: 1`" in PAGE.read_text()
    assert len(own.splitlines()) + 1 <= 40
    assert _own_tests_pass(tmp_path)
    assert _exit_code("check", str(recipe)) == 0


def test_the_environment_of_the_tutorial_holds_the_same_tests(tmp_path: Path) -> None:
    page = PAGE.with_name("tutorial-own-reward.md").read_text()
    own = page.split("```python\n")[2].split("```")[0]
    assert _exit_code("init", str(tmp_path)) == 0
    recipe = tmp_path / "recipe.yaml"
    _with_task(tmp_path, own)
    said = recipe.read_text()
    for change in ("max_turns: 3", "max_new_tokens: 64"):
        assert change in page
        said = re.sub(rf"{change.split(':')[0]}: \d+", change, said)
    recipe.write_text(said)
    assert _own_tests_pass(tmp_path)
    assert _exit_code("check", str(recipe)) == 0


def test_its_tests_notice_a_reward_that_calls_everything_right(tmp_path: Path) -> None:
    assert _exit_code("init", str(tmp_path)) == 0
    written = tmp_path / "my_reward.py"
    written.write_text(written.read_text().replace("Verdict(float(right)", "Verdict(1.0"))
    assert not _own_tests_pass(tmp_path)


def test_after_an_edit_of_the_reward_only_rl_and_what_follows_run_again(tmp_path: Path) -> None:
    assert _exit_code("init", str(tmp_path)) == 0
    before = _digests(tmp_path / "recipe.yaml")
    reward = tmp_path / "my_reward.py"
    reward.write_text(reward.read_text().replace(".strip()", ".strip().lower()"))
    after = _digests(tmp_path / "recipe.yaml")
    assert [name for name in before if before[name] != after[name]] == ["my-domain-rl", "evaluate"]


def _digests(file: Path) -> dict[str, str]:
    recipe = load_recipe(str(file))
    found = planned_identities(plan_of("post-train", recipe, {}), own_files(recipe))
    return {name: identity.digest for name, identity in found.items()}


def test_every_command_that_takes_a_recipe_finds_its_own_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _exit_code("init", str(tmp_path)) == 0
    recipe, domain = tmp_path / "recipe.yaml", tmp_path / "my_domain.py"
    reward = f"{tmp_path / 'my_reward.py'}:right_answer"
    can_be_tried = """
    def solution(self, problem: Problem) -> Sequence[Message]:
        return [turn for turn in solve(problem) if turn.role == "assistant"]

    def secrets(self, problem: Problem) -> Sequence[str]:
        return ["nothing of the kind"]

    def environment"""
    domain.write_text(domain.read_text().replace("\n    def environment", can_be_tried))
    for command in (
        ["check", str(recipe)],
        ["diff", str(recipe), "--set", "seed=1"],
        ["save", str(recipe), "kept"],
        ["check", "kept"],
        ["test-hook", reward],
        ["test-hook", f"{domain}:MyDomain"],
        ["test-hook", reward, "--curriculum", f"{domain}:MyDomain"],
        ["admit", str(recipe), "--count", "3"],
    ):
        assert _exit_code(*command) == 0, (command, capsys.readouterr().err)
    assert "3 of 3 problems are admitted" in capsys.readouterr().out


def test_a_file_that_is_there_is_named_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "README.md").write_text("mine")
    (tmp_path / "my_domain.py").symlink_to("nowhere")
    assert _exit_code("init", str(tmp_path)) == 2
    assert "my_domain.py, README.md exist there already" in capsys.readouterr().err
    assert {file.name for file in tmp_path.iterdir()} == {"README.md", "my_domain.py"}
    assert (tmp_path / "README.md").read_text() == "mine"


def test_a_folder_that_cannot_be_written_is_bad_input_and_holds_nothing_after(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    assert _exit_code("init", str(tmp_path / "file")) == 2
    assert "give a folder that you may write to" in capsys.readouterr().err
    monkeypatch.setattr("flows.command.recipes.FILES", ("recipe.yaml", "missing/below.py"))
    assert _exit_code("init", str(tmp_path / "half")) == 2
    assert list((tmp_path / "half").iterdir()) == []
