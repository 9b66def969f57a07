"""What newcomers type wrong: each message says what is wrong, where, and what to do next."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.parts.recorded_run import RecordedRun, exit_code

pytestmark = pytest.mark.unit

MISTAKES = {
    "check chats.jsonl": "no field of a recipe, but messages; .* see `tributary preview`",
    "check 'my folder'": "`my folder` is a folder; name a recipe's file",
    "check mine.yaml --set seed=": "--set seed=: the value is empty; .* `seed=null` takes out",
    "check mine.yaml --set base.random=null --set base.folder=./modell": "{here}/modell is missing",
    "check mine.yaml --sett seed=1": "Did you mean --set",
    "run mine.yaml --name 'Mein Lauf'": "--name Mein Lauf: a run's name has small letters",
    "run cpu-smoek": "no recipe `cpu-smoek`: .* did you mean `cpu-smoke`",
    "report mine.yaml": "mine.yaml is a file: a run is called by its id, its name",
    "report agent-rl": "`agent-rl` is a stage of first-.*: name the run",
    "logs agent-rl first": "the run comes first: tributary logs first agent-rl",
    "retry agent-rl first": "the run comes first: tributary retry first agent-rl",
    "rollouts cpu-smoke/agent-lr": "did you mean `agent-rl`",
    "top --every nan": "--every nan: seconds between two looks, from 0.5 to 3600",
    "sft --model './my modèl' --data chats.jsonl": "my modèl: there is no such folder, seen from",
    "sft --model chats.jsonl --data chats.jsonl": "is a file; .* Were two words swapped",
    "export ./out agent-rl": "./out: there is no such folder, seen from",
    "test-hook reward.py": "write the file and the part in it, .* as in reward.py:my_reward",
    "admit mine.yaml --domain agnet": "no such domain; did you mean `agent`.*; it has reasoning",
    "fleet check notes.txt": "topology: write fields below it, as `name: value`; got 'hello'",
}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run on record, and with files of a newcomer."""
    folder = tmp_path_factory.mktemp("here")
    (folder / "my folder").mkdir()
    (folder / "mine.yaml").write_text("extends: cpu-smoke\nname: mine\n")
    (folder / "notes.txt").write_text("hello")
    (folder / "chats.jsonl").write_text('{"messages": []}\n')
    (folder / "reward.py").write_text("")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRIBUTARY_HOME", str(folder / "home"))
        RecordedRun.of(folder / "scratch", "first").with_samples()
    return folder


@pytest.mark.parametrize("typed", MISTAKES)
def test_a_mistake_is_named_with_what_to_do(
    typed: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRIBUTARY_HOME", str(here / "home"))
    monkeypatch.chdir(here)
    assert exit_code(shlex.split(typed)) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "Traceback" not in said
    assert re.search(MISTAKES[typed].format(here=here), said), said
