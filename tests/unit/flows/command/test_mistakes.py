"""What newcomers type wrong: each message says what is wrong, where, and what to do next."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from infra.errors import StorageError
from tests.parts.recorded_run import RecordedRun, exit_code

pytestmark = pytest.mark.unit

_OF_AGENT = "extends: cpu-smoke\nname: mine\nexperts: {{agent: {{domain: {{rewards: [{}]}}}}}}\n"
"""a recipe with another reward"""
_RL = "experts.agent.path."
MISTAKES = {
    "check chats.jsonl": "no field of a recipe, but messages; .* see `tributary preview`",
    "check 'my folder'": "`my folder` is a folder; it holds no .yaml file; `tributary init`",
    "check .": "`.` is a folder; name a recipe's file, of those in it: five.yaml, keys.yaml",
    "check five.yaml": "five.yaml: holds 5; a recipe is a mapping of fields",
    "check mine.yaml --set seed=1.5": "seed: must be a whole number, got 1.5",
    "check mine.yaml --set evaluate.problems=null": "evaluate.problems: has no value; write one",
    "check mine.yaml --set 'evaluate.sampling={top_p: 0.9}'": "must be a list, .* got {{'top_p'",
    "check mine.yaml --set 'evaluate.sampling=[{top_k: 9}]'": "unknown field; did you mean `top_p`",
    "check keys.yaml": "line 3: Yes may be a text, or true or false: put it in quotes",
    "trian": "has no command `trian`; did you mean `sft`, `rl` or `run`",
    "evalute": "has no command `evalute`; did you mean `evaluate`",
    "sft --model m --data nope.jsonl": "error: --data: no file matches .*nope.jsonl",
    "check tests.yaml": "rewards.0: problem [^ ]+ has a reference without 'tests'",
    "chat first": "`first` is a run; name one of its stages: first/agent-rl, first/evaluate",
    "rollouts first": "`first` is a run; name one of its stages: first/agent-rl, first/evaluate",
    "rollouts agent-rl --expert agnet": "--expert agnet: the samples are of agent-rl",
    "rollouts agent-rl --domain general": "--domain general: the samples are of agent",
    "sft --model m --data many": "several subsets: a, b, c, d, e, f, g, h and 2 more; say which",
    "diff cpu-demo": "diff cpu-demo: nothing to compare it with; name a second recipe or run",
    "artifacts --root s3:/bucket": "--root: write s3://bucket; got",
    "serve ./m --host 999.1.1.1": "host 999.1.1.1: is no address of this machine",
    "sft --model m --data chats.jsonl --steps 2.5": "--steps: 2.5 is not a whole number",
    "rl --model m --data asks.jsonl --reward reward.py:shrt": "no `shrt`; did you mean `short`",
    "rl --model m --data asks.jsonl --reward math --reward math": "domain: 2 rewards are called",
    "sft --model m --data chats.jsonl --held-out x": "--held-out; `rl` has it",
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
    "sft --model m --data chats.jsonl --epochs 2 --steps 9": "--epochs 2: --steps says how long",
    "sft --model m --data chats.jsonl --max-new-tokens 9": "--max-new-tokens is for answers in a",
    "rl --model m --domain agent --max-new-tokens 0": "max_new_tokens: input should be greater",
    "rl --model m --domain agent --instruction x": "answer; leave it out$",
    "evaluate --model m --domain agent --lm-eval-folder my": "name its tasks by --lm-eval, too",
    "serve m --sglang context_len=9": "context_len is not a server argument .*did you mean",
    "serve m --sglang page_size=x": "--sglang page_size takes int",
    "sft --model m --domain agent --epochs 2": "--epochs 2: there are no --data; leave one",
    "sft --model './my modèl' --data chats.jsonl": "my modèl: there is no such folder, seen from",
    "sft --model chats.jsonl --data chats.jsonl": "is a file; .* Were two words swapped",
    "export ./out agent-rl": "./out: there is no such folder, seen from",
    "test-hook reward.py": "write the file and the part in it, .* as in reward.py:my_reward",
    "admit mine.yaml --domain agnet": "no such domain; did you mean `agent`.*; it has reasoning",
    "check nameless.yaml": "name: is missing; a recipe has a name of its own, e.g. `name: mine`$",
    "check mine.yaml --set experts.agent.path.rl.lr=1e-4": "rl.lr: .* did you mean `optimizer.lr`",
    "check mine.yaml --set 'experts.agent.path=[{rl: {steps: 2}}]'": "optimizer: .*; it needs lr",
    "check mine.yaml --set experts.agent.path.rl.trainer.lora=8": "got 8; known here: alpha, rank",
    "check mine.yaml --set experts.agent.path.ppo.steps=2": "none of its items, which have sft, rl",
    "check mine.yaml --set experts.agent.domain.driver.name=harness": "driver: .* lacks 'command'",
    "check mine.yaml --set base.folder=./model": "`random: null` takes out one that is inherited",
    "check mine.yaml --set seed=9223372036854775808": "seed: input should be less than",
    "check mine.yaml --set storage.root=s3:/bucket": "storage.root: write s3://bucket; got",
    "check mine.yaml --set storage.root=s3://": "storage.root: is empty; name a folder",
    "check mine.yaml --set storage.root=gs://x/y": "gs://x/y cannot be opened: .*gcsfs",
    "check mine.yaml --set base.folder=https://huggingface.co/org/a": "of a model; write hf:org/a",
    "sft --model https://huggingface.co/org/a/tree/main --data chats.jsonl": "write hf:org/a$",
    "check mine.yaml --set tracking.experiment=": "the value is empty",
    "check mine.yaml --set rounds.harder.agnet=[{}]": "no such expert. Did you mean 'agent'",
    "check mine.yaml --until agent-lr": "--until agent-lr: no such stage; .* did you mean",
    "check mine.yaml --set 'experts.agent.path=[{sft: {data: chats.jsonl}}]'": "sft.data: write"
    " `data: {{files: .chats.jsonl.}}`; got",
    "check mine.yaml --set seed=1 --set seed=2": "seed, or a field below it, is set twice; keep",
    f"check mine.yaml --set {_RL}rl.steps=4 --set {_RL}1.rl.steps=5": "steps=5: .* is set twice",
    "check mine.yaml --set evaluate.problems=4 --set 'evaluate={samples: 2}'": "evaluate, or a f",
    "check mine.yaml --set seed=010": "010 would be read in base 8 or 60; write the number without",
    "check mine.yaml --set seed=08": "08 would be read in base 8",
    "check mine.yaml --set seed=1:30": "1:30 would be read in base 8 or 60",
    "sft --model m --data chats.jsonl --batch-size 99": "--batch-size 99: the files give 1 rows",
    "fleet check notes.txt": "topology: write fields below it, as `name: value`; got 'hello'",
}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run on record, and with files of a newcomer."""
    folder = tmp_path_factory.mktemp("here")
    (folder / "my folder").mkdir()
    (folder / "m").mkdir()
    (folder / "mine.yaml").write_text("extends: cpu-smoke\nname: mine\n")
    (folder / "nameless.yaml").write_text("extends: cpu-smoke\n")
    for subset in "abcdefghij":
        (folder / "many" / subset).mkdir(parents=True)
        (folder / "many" / subset / "rows.jsonl").write_text('{"messages": []}\n')
    (folder / "five.yaml").write_text("5")
    judge = "{name: judge, options: {prompt: x, choices: {Yes: 1}}, served: {model: base}}"
    (folder / "keys.yaml").write_text(_OF_AGENT.format(judge))
    (folder / "tests.yaml").write_text(_OF_AGENT.format("{name: code, outcome: true}"))
    (folder / "notes.txt").write_text("hello")
    (folder / "chats.jsonl").write_text('{"messages": []}\n')
    (folder / "reward.py").write_text("def short(transcript):\n    return 1\n")
    (folder / "asks.jsonl").write_text('{"question": "1+1", "answer": "2"}\n' * 9)
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


def test_a_folder_that_was_removed_under_the_shell_is_said_to_be_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (gone := tmp_path / "gone").mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    for typed in (["preview", "a.jsonl", "--model", "m"], ["check", "./r.yaml"], ["recipes"]):
        assert exit_code(typed) == 2
        assert "is there no more; go to another with `cd`" in capsys.readouterr().err


def test_a_pass_over_few_rows_is_said_to_teach_little(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRIBUTARY_HOME", str(here / "home"))
    monkeypatch.chdir(here)
    typed = ["sft", "--model", "m", "--data", "chats.jsonl", "--print"]
    assert not exit_code(typed)
    assert "# So few steps teach little: --epochs passes" in capsys.readouterr().out
    assert not exit_code([*typed, "--epochs", "2"])
    assert "little" not in capsys.readouterr().out


def test_check_says_why_it_does_not_know_what_would_run(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stands_still(*_: object) -> None:
        raise StorageError("could not read s3://bucket: there are no complete credentials")

    monkeypatch.setenv("TRIBUTARY_HOME", str(here / "home"))
    monkeypatch.setattr("flows.reasons.stage_reasons", stands_still)
    assert exit_code(["check", "cpu-smoke"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "which would run is not known: could not read s3://bucket: there are no" in said
