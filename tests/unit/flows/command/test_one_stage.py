"""One stage alone: the recipe that it prints, saves and stands for."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from engines.algorithms.preference_losses import Ipo
from flows.catalog import plan_of
from flows.checks.recipe_checks import check_recipe
from flows.command.main import main
from flows.load import load_recipe
from flows.one_stage.one_domain import OURS, OneStage, expert_name
from flows.plan import PlannedStage
from flows.post_train import plan_post_train
from flows.running.new_run import new_run
from flows.running.records import StageRecord, store_of
from infra.errors import InputError
from infra.home import SOURCE_ROOT
from infra.store.artifacts import ArtifactStore
from tasks.model_folder.model_files import local_folder
from tests.parts.chat_parts import random_base
from tests.parts.clients import TASKS, library

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text("{}")
    (tmp_path / "chats.jsonl").write_text('{"messages": []}\n' * 100)
    return tmp_path


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--print"])
    captured = capsys.readouterr()
    assert ended.value.code == 0, captured.err
    return yaml.safe_load(captured.out)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--print"])
    assert ended.value.code == 2
    return " ".join(capsys.readouterr().err.split())


def plan(data: dict[str, Any], folder: Path) -> dict[str, PlannedStage]:
    """As the recipe that was printed is run."""
    file = folder / "printed.yaml"
    file.write_text(yaml.safe_dump(data))
    return {stage.name: stage for stage in plan_post_train(load_recipe(str(file)))}


def test_files_of_preferences_are_learned_by_the_loss_that_is_named(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    row = {"prompt": "Hi", "chosen": "a", "rejected": "b"}
    (folder / "pairs.jsonl").write_text(f"{json.dumps(row)}\n" * 64)
    asked = ("preference", "--model", "model", "--data", "pairs.jsonl", "--loss", "ipo")
    data = printed(capsys, *asked, "--columns", "margin=gap", "--epochs", "2")
    (stage,) = data["experts"]["pairs"]["path"]
    assert stage["preference"]["steps"] == 8
    planned = plan(data, folder)["pairs-preference"]
    assert planned.spec.settings.loss == Ipo(kind="ipo")
    assert planned.inputs == {"model": "base"}
    assert planned.spec.message_files[0].columns.margin == "gap"
    (stage,) = printed(capsys, "reward", *asked[1:5])["experts"]["pairs"]["path"]
    assert stage["reward"]["data"] == {"files": [str(folder / "pairs.jsonl")]}
    assert "preference needs something to learn from" in refused(
        capsys, "preference", "--model", "model"
    )


@pytest.mark.parametrize("asked", ["reward", "preference", "preference --loss kto"])
def test_an_epoch_counts_comparisons(
    capsys: pytest.CaptureFixture[str], folder: Path, asked: str
) -> None:
    """Three of each of 32 lists, of which `reward` holds out 5%."""
    row = {"prompt": "Hi", "responses": ["a", "b", "c"], "scores": [1, 2, 3]}
    (folder / "l.jsonl").write_text(f"{json.dumps(row)}\n" * 32)
    data = printed(capsys, *asked.split(), "--model", "model", "--data", "l.jsonl")
    assert data["experts"]["l"]["path"][0][asked.split()[0]]["steps"] == 6


def test_files_of_messages_alone_need_no_domain_and_are_passed_once(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    data = printed(capsys, "sft", "--model", "model", "--data", "chats.jsonl")
    assert data["base"] == {"folder": str(folder / "model")}
    sft = data["experts"]["chats"]["path"][0]["sft"]
    assert sft["data"] == {"files": [str(folder / "chats.jsonl")]}
    assert (sft["steps"], sft["batch_size"]) == (7, 16), "100 rows in batches of 16"
    assert list(plan(data, folder)) == ["base", "chats-sft"]


def test_two_passes_are_twice_the_steps(capsys: pytest.CaptureFixture[str]) -> None:
    files = ("sft", "--model", "model", "--data", "chats.jsonl", "--batch-size", "10")
    twice = printed(capsys, *files, "--epochs", "2")
    assert twice["experts"]["chats"]["path"][0]["sft"]["steps"] == 20
    exact = printed(capsys, *files, "--steps", "3")
    assert exact["experts"]["chats"]["path"][0]["sft"]["steps"] == 3


@pytest.mark.parametrize("domain", OURS)
def test_each_built_in_domain_has_a_reward_that_suits_it(
    capsys: pytest.CaptureFixture[str], folder: Path, domain: str
) -> None:
    data = printed(capsys, "rl", "--model", "model", "--domain", domain, "--lr", "2e-4")
    stages = plan(data, folder)
    assert list(stages) == ["base", f"{domain}-rl", "evaluate"]
    assert data["experts"][domain]["domain"]["rewards"] == [
        {"name": OURS[domain].reward, "outcome": True}
    ]
    assert data["experts"][domain]["path"][0]["rl"]["optimizer"] == {"lr": 2e-4}


def test_own_parts_in_a_file_become_hooks(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    (folder / "mine.py").write_text("")
    data = printed(
        capsys, "rl", "--model", "model", "--domain", "mine.py:MyDomain",
        "--reward", "mine.py:right", "--reward", "format=0.2",
    )  # fmt: skip
    assert data["hooks"] == [str(folder / "mine.py")]
    domain = data["experts"]["my-domain"]["domain"]
    assert domain["curriculum"] == {"name": "mine:MyDomain"}
    assert domain["rewards"] == [
        {"name": "mine:right", "outcome": True}, {"name": "format", "weight": 0.2},
    ]  # fmt: skip


def test_a_task_of_a_library_is_a_domain(
    capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library(monkeypatch, "inspect_ai")
    tasks = folder / "own_tasks.py"
    shutil.copy(TASKS / "inspect_tasks.py", tasks)
    asked = ("--model", "model", "--domain", "inspect=own_tasks.py:sums", "--samples", "2")
    data = printed(capsys, "evaluate", *asked)
    domain = data["experts"]["sums"]["domain"]
    assert domain["curriculum"] == {"name": "inspect", "options": {"task": "own_tasks:sums"}}
    assert domain["driver"] == {"name": "library"}
    assert domain["rewards"] == [{"name": "library-score", "outcome": True}]
    assert data["evaluate"] == {"samples": 2, "problems": 6}, "all that it has"
    assert data["hooks"] == [str(tasks)]
    said = refused(capsys, "evaluate", "--model", "model", "--domain", "inspect=nothing.py:sums")
    assert "there is no file" in said


def test_an_evaluation_alone_scores_the_model_and_trains_nothing(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    data = printed(capsys, "evaluate", "--model", "model", "--domain", "general", "--problems", "9")
    stages = plan(data, folder)
    assert list(stages) == ["base", "evaluate"]
    assert stages["evaluate"].inputs == {"base": "base"}
    assert data["evaluate"] == {"problems": 9}


def test_tasks_of_lm_eval_need_no_domain(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    (folder / "own").mkdir()
    asked = ("--lm-eval", "arc_easy", "--lm-eval", "mine", "--lm-eval-folder", "own")
    data = printed(capsys, "evaluate", "--model", "model", *asked)
    assert data["lm_eval"] == {"tasks": ["arc_easy", "mine"], "folder": str(folder / "own")}
    stages = plan(data, folder)
    assert list(stages) == ["base", "lm-eval"]
    assert stages["lm-eval"].inputs == {"base": "base"}
    assert "or --lm-eval" in refused(capsys, "evaluate", "--model", "model")


def test_prompts_are_all_evaluated_but_partly_held_out_of_training(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    rows = [f'{{"question": "{n}+1", "answer": "{n + 1}"}}' for n in range(100)]
    (folder / "chats.jsonl").write_text("\n".join([*rows, rows[0]]))
    given = ("--model", "model", "--data", "chats.jsonl", "--reward", "math")
    scored = printed(capsys, "evaluate", *given)
    options = scored["experts"]["chats"]["domain"]["curriculum"]["options"]
    assert options["sources"]["split"] == "heldout"
    assert scored["evaluate"] == {"problems": 100}
    held_out = printed(capsys, "rl", *given)["evaluate"]["problems"]
    assert 3 <= held_out <= 20, "a tenth, by their content"
    apart = printed(capsys, "rl", *given, "--held-out", "chats.jsonl")
    sources = apart["experts"]["chats"]["domain"]["curriculum"]["options"]["sources"]
    assert [source["split"] for source in sources] == ["train", "heldout"]
    assert apart["evaluate"] == {"problems": 100}
    taught = printed(capsys, "distill", *given)
    assert taught["experts"]["chats"]["path"] == [{"distill": {"problems": 100}}]


def test_a_model_of_a_run_is_named_by_its_artifact_and_found_after_the_home_was_moved(
    capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = new_run(load_recipe("cpu-smoke"), "post-train", {}, name="first", in_process=True)
    artifacts = ArtifactStore(store_of(record.recipe().storage), folder / "cache")
    for stage, kind, digest in (("evaluate", "evaluate", "cd" * 32), ("agent-rl", "rl", "ab" * 32)):
        (made := folder / f"made-{kind}").mkdir()
        (made / ("config.json" if kind == "rl" else "scores.json")).write_text("{}")
        found = artifacts.commit(
            kind, digest, 1, made, identity={}, inputs={}, code={}, metrics={}, seeds={},
            mlflow_run_id="", seconds=1.0,
        )  # fmt: skip
        record.put_stage(StageRecord(name=stage, kind=kind, digest=digest, state="completed"))
    said = refused(capsys, "sft", "--model", "first/evaluate", "--data", "chats.jsonl")
    assert "--model first/evaluate: is what a stage `evaluate` made, no model" in said
    for name in ("first/agent-rl", f"{record.run}/agent-rl", "agent-rl", "abab"):
        data = printed(capsys, "evaluate", "--model", name, "--domain", "agent")
        assert data["base"] == {"folder": found.url}
    before = folder / "home"
    assert local_folder(found.url) == Path(found.url.removeprefix("file://"))
    shutil.move(before, folder / "moved")
    assert local_folder(found.url) == Path(found.url.removeprefix("file://")), "not in this home"
    monkeypatch.setenv("TRIBUTARY_HOME", str(folder / "moved"))
    assert (now := local_folder(found.url)) is not None
    assert (now / "config.json").is_file()
    assert now.is_relative_to(folder / "moved")


def test_changes_and_names_are_those_of_the_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    data = printed(
        capsys, "rl", "--model", "model", "--domain", "agent", "--name", "mine", "--seed", "3",
        "--set", "experts.agent.path.rl.bounds.solved_reward=0.9",
        "--set", "evaluate.sampling=[{temperature: 0.6, top_p: 0.95}]",
    )  # fmt: skip
    assert data["evaluate"]["sampling"] == [{"temperature": 0.6, "top_p": 0.95}]
    assert (data["name"], data["seed"]) == ("mine", 3)
    assert data["experts"]["agent"]["path"][0]["rl"]["bounds"] == {"solved_reward": 0.9}


def test_a_saved_recipe_is_the_printed_one_and_nothing_is_overwritten(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    wanted = ("distill", "--model", "model", "--domain", "general", "--save", "my/mine.yaml")
    data = printed(capsys, *wanted)
    text = (folder / "my/mine.yaml").read_text()
    assert yaml.safe_load(text) == data
    assert "from a file: tributary run my/mine.yaml" in text.splitlines()[0]
    assert data["evaluate"] is None, "what makes data is not scored"
    assert load_recipe("my/mine.yaml").name == "distill-general"
    assert "my/mine.yaml: exists already" in refused(capsys, *wanted)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["rl"], "rl needs problems: give --domain (reasoning, agent"),
        (["sft"], "sft needs something to learn from: give --data"),
        (["rl", "--domain", "agnet"], "did you mean `agent`?"),
        (["rl", "--domain", "agent", "--reward", "mth"], "did you mean `math`?"),
        (["rl", "--data", "chats.jsonl"], "--reward: say what judges the answers; built in: math"),
        (["rl", "--domain", "x.py:X"], "--domain x.py:X: there is no file"),
        (["rl", "--domain", "x.py"], "--domain x.py: say what of the file: x.py:NAME"),
        (["rl", "--domain", "agent", "--reward", "x.py"], "--reward x.py: say what of the file"),
        (["rl", "--domain", "agent", "--rounds", "3"], "--rounds; write --set rounds=VALUE"),
        (
            ["sft", "--data", "chat.jsonl"],
            "chat.jsonl; did you mean `chats.jsonl`?",
        ),
        (["sft", "--data", "my_data/chats.jsonl"], "; there is no folder "),
        (["sft", "--data", "chats.jsonl", "--columns", "x"], "--columns x: write column=name"),
        (["sft", "--data", "chats.jsonl", "--reward", "math"], "give --domain, or leave it out"),
        (["rl", "--domain", "agent", "--reward", "math=x"], "write name=weight"),
        (
            ["rl", "--domain", "agent", "--data", "q.jsonl"],
            "--domain agent; give files or",
        ),
        (["distill", "--domain", "agent", "--data", "q.jsonl"], "the problems come from --domain"),
        (["rl", "--domain", "agent", "--held-out", "q.jsonl"], "the problems come from --domain"),
        (["evaluate", "--lm-eval", "t", "--columns", "a=b"], "--columns a=b: give the files"),
        (
            ["rl", "--domain", "agent", "--pattern", "x"],
            "--pattern 'x': belongs to prompts of --data",
        ),
        (["sft", "--data", "c.jsonl", "--instruction", "x"], "sft learns what its rows say"),
        (["sft", "--data", "chats.jsonl", "--columns", "a=b", "a=c"], "a is named twice"),
        (["sft", "--data", "chats.jsonl", "--batch-size", "0"], "--batch-size 0: at least 1"),
        (["sft", "--data", "chats.jsonl", "--epochs", "inf"], "--epochs inf: a number of passes"),
        (["rl", "--domain", "agent", "--set", "name=[a"], "--set name=[a: the value is not YAML"),
        (["rl", "--domain", "agent", "--set", "seed=2024-13-45"], "whole number, got '2024-13-45'"),
        (["rl", "--domain", "agent", "--lr", "5"], "path.0.rl.optimizer.lr: input should be less"),
        (["rl", "--domain", "agent", "--set", "sed=1"], "sed: unknown field; did you mean `seed`"),
    ],
)
def test_what_is_wrong_is_named(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert said in refused(capsys, *arguments, "--model", "model")


def test_what_is_no_model_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "evaluate", "--model", "mdoel", "--domain", "agent")
    assert "--model mdoel: is no folder, no name of the hub (ORG/NAME) and no artifact" in said
    assert "hf:" not in said
    said = refused(capsys, "evaluate", "--model", "cpu-demoo/agent", "--domain", "agent")
    assert "did you mean `cpu-demo`? For a model of the hub write hf:cpu-demoo/agent" in said


def test_a_name_of_the_hub_needs_no_prefix(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    for name in ("Qwen/Qwen2.5-0.5B-Instruct", "Qwen/Qwen3-0.6B@main"):
        data = printed(capsys, "sft", "--model", name, "--domain", "agent")
        assert data["base"] == {"folder": f"hf:{name}"}
    (folder / "mine.yaml").write_text(
        "name: mine\nbase: {folder: Qwen/Q3}\nexperts: {a: {path: []}}\n"
    )
    assert load_recipe("mine.yaml").base.folder == "hf:Qwen/Q3"
    (folder / "Qwen").mkdir()
    assert load_recipe("mine.yaml").base.folder == str(folder / "Qwen/Q3"), "a path of a folder"
    with pytest.raises(InputError, match="cpu-smoke/agent-rl: a recipe names a model by"):
        load_recipe("mine.yaml", ["base.folder=cpu-smoke/agent-rl"])


@pytest.mark.parametrize(
    ("data", "domain", "name"),
    [
        ("/a/My Chats.v2.jsonl", "", "my-chats"),
        ("s3://bucket/part-*.parquet", "", "part"),
        ("/a/*.jsonl", "", "a"),
        ("/a/2024.jsonl", "", "own-2024"),
        ("/a/model.jsonl", "", "own-model"),
        ("", "mine.py:MyDomain", "my-domain"),
    ],
)
def test_stages_are_called_by_their_data_or_domain(data: str, domain: str, name: str) -> None:
    asked = OneStage(kind="sft", model="m", data=[data] if data else [], domain=domain)
    assert expert_name(asked) == name


def test_what_is_said_of_the_prompts_is_of_each_of_their_sources(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    rows = [
        {"q": str(n), "more": "+1", "gold": {"a": f"#### {n + 1}"}, "lang": 1} for n in range(9)
    ]
    for name in ("sums", "test"):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = {"reference_pattern": "#### (.+)", "instruction": "Box it.", "system": "Be brief."}
    asked = ["--data", "sums.jsonl", "--reward", "exact", "--pattern", said["reference_pattern"]]
    asked += ["--instruction", "Box it.", "--system", "Be brief."]
    asked += ["--columns", "prompt=q+more", "reference=gold.a", "metadata=lang,more"]
    columns = {"prompt": "q+more", "reference": "gold.a", "metadata": ["lang", "more"]}
    for kind, more in (("evaluate", []), ("rl", ["--held-out", "test.jsonl"])):
        written = printed(capsys, kind, "--model", "model", *asked, *more)
        sources = written["experts"]["sums"]["domain"]["curriculum"]["options"]["sources"]
        for source in sources if kind == "rl" else [sources]:
            assert {name: source[name] for name in said} == said
            assert source["columns"] == columns


def test_the_tutorials_own_questions_can_be_learned_from_as_they_are_printed(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    text = (SOURCE_ROOT / "docs/tutorial-own-data.md").read_text()
    _, questions, exam = re.findall(r"```json\n(.*?)```", text, re.DOTALL)[:3]
    (folder / "questions.jsonl").write_text(questions)
    (folder / "exam.jsonl").write_text(exam)
    (line,) = re.findall(r"^tributary (rl .*)$", text, re.MULTILINE)
    shutil.rmtree(folder / "model")
    random_base(folder / "model")
    asked = shlex.split(line.replace("support/chats-sft", "model"))
    asked += ["--max-new-tokens", "64"]  # this model has a short context
    (folder / "mine.yaml").write_text(yaml.safe_dump(printed(capsys, *asked)))
    recipe = load_recipe(str(folder / "mine.yaml"))
    check_recipe(recipe, plan_post_train(recipe))
    without = [w for w in asked if w not in ("--held-out", "exam.jsonl")]
    (folder / "mine.yaml").write_text(yaml.safe_dump(printed(capsys, *without)))
    recipe = load_recipe(str(folder / "mine.yaml"))
    with pytest.raises(InputError, match="name files to hold out: by --held-out"):
        check_recipe(recipe, plan_post_train(recipe))


def test_distillation_of_files_holds_out_nothing_and_can_run(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    rows = [{"question": f"{n}+1", "answer": str(n + 1)} for n in range(40)]
    (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shutil.rmtree(folder / "model")
    random_base(folder / "model")
    asked = shlex.split("distill --model model --data sums.jsonl --reward exact")
    asked += ["--max-new-tokens", "8"]
    (folder / "mine.yaml").write_text(yaml.safe_dump(printed(capsys, *asked)))
    recipe = load_recipe(str(folder / "mine.yaml"))
    plan = plan_of("post-train", recipe, {})
    assert [stage.name for stage in plan] == ["base", "sums-distill"]
    check_recipe(recipe, plan)
    with pytest.raises(InputError, match="`evaluate` is null, and this flow scores models"):
        plan_of("evaluate", recipe, {"models": {}})
