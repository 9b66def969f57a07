"""Names of models, pins, and which artifacts nothing needs."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from engines.sglang.serving.endpoint import Parsers, ServedModel
from engines.sglang.topology import ServedFleet
from flows.command.main import main
from flows.command.models import serve
from flows.command.models.card import recipe_for_strangers
from flows.command.models.collect import survey
from flows.command.models.named_artifacts import find_named_model, locate_artifact
from flows.command.models.serve import ready_lines, shown_key
from flows.load import load_recipe, validate_recipe
from flows.running.new_run import new_run
from flows.running.records import RunEntry, RunHead, RunRecord, StageRecord, store_at
from infra.errors import InfrastructureError, InputError
from infra.store.store import Store
from infra.tracking.rest import AliasedArtifact
from tests.parts.chat_parts import random_base
from tests.parts.run_records import artifact_store, put_artifact, put_run

pytestmark = pytest.mark.unit


def digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


BASE, SFT, RL, OLD = digest("base"), digest("sft"), digest("rl"), digest("old")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Artifacts of two runs of one recipe, and one of no run; all made long ago."""
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("flows.command.models.collect.YOUNG_S", -1.0)
    model = random_base(tmp_path / "model")
    put_artifact("base", BASE, model)
    put_artifact("sft", OLD, model, {"model": BASE})
    put_run({"base": ("base", BASE), "agent-sft": ("sft", OLD), "general-sft": ("rl", RL)})
    put_artifact("sft", SFT, model, {"model": BASE})
    put_artifact("rl", RL, model, {"model": SFT})
    put_run({"base": ("base", BASE), "agent-sft": ("sft", SFT), "agent-rl": ("rl", RL)})
    put_artifact("sft", digest("nobody's"), model)
    return tmp_path / "home"


def command(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    code = ended.value.code
    assert isinstance(code, int)
    return code


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        (RL[:8], RL),
        (f"rl/{RL[:12]}", RL),
        (f"rl/{RL[:4]}", RL),
        (f"rl/{RL}", RL),
        ("agent-rl", RL),
        ("cpu-smoke/agent-sft", SFT),
        ("cpu-smoke/general-sft", RL),
    ],
)
def test_an_artifact_is_found_by_what_a_person_calls_it(home: Path, name: str, wanted: str) -> None:
    found = find_named_model(name, "")
    assert found.record is not None
    assert found.record.digest == wanted
    assert (found.folder / "config.json").is_file()


def test_a_model_folder_elsewhere_is_copied_once(home: Path, tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'model'}"
    first = find_named_model(url, "").folder
    assert (first / "model.safetensors").read_bytes() == (
        tmp_path / "model" / "model.safetensors"
    ).read_bytes()
    assert find_named_model(url, "").folder == first


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("agent-nothing", "no artifact `agent-nothing`: run .* has not made it; did you mean"),
        ("agent-rll", "no artifact `agent-rll`: .*; did you mean `agent-rl`"),
        ("general-sft", "has no artifact `general-sft`; one that has is cpu-smoke-.*/general-sft"),
        ("cpu-smoke/general-rl", "no run of `cpu-smoke` has made it; did you mean"),
        ("other-run/agent-rl", "no run, run name or recipe `other-run` .* write hf:other-run/"),
        ("cpu-smok/whatever", r"did you mean `cpu-smoke`\? For a model of the hub write hf:cpu-s"),
        ("Qwen/Qwen2.5-0.5B", "hf:Qwen/Qwen2.5-0.5B@main .*No folder, run or recipe is called Q"),
        ("./agent-rl", "there is no such folder, seen from"),
        ("@best", "the local stack is down"),
    ],
)
def test_a_name_of_nothing_says_what_to_do(
    home: Path, name: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(Exception, match=told):
        find_named_model(name, "")


@pytest.mark.parametrize(("state", "how"), [("running", "logs"), ("stopped", "resume")])
def test_a_stage_that_made_nothing_yet_is_not_one_whose_artifact_is_lost(
    home: Path, state: Any, how: str
) -> None:
    stage = StageRecord(name="agent-opd", kind="opd", state=state, digest=digest("unfinished"))
    put_run({"base": ("base", BASE)}).put_stage(stage)
    with pytest.raises(InputError, match=f"it is {state}; see `tributary {how} cpu-smoke`"):
        find_named_model("cpu-smoke/agent-opd", "")


def test_a_folder_that_is_called_as_a_stage_is_not_taken_for_it(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(home.parent)
    assert command("export", "./model", "cpu-smoke/agent-rl") == 2, "two words are swapped"
    assert "tributary export cpu-smoke/agent-rl FOLDER" in capsys.readouterr().err
    shutil.copytree("model", "cpu-smoke/agent-rl")
    shutil.copytree("model", "cpu-smoke/best")
    with pytest.raises(InputError, match=r"and a stage of a run: write \./cpu-smoke"):
        find_named_model("cpu-smoke/agent-rl", "")
    assert find_named_model("./cpu-smoke/agent-rl", "").record is None
    assert find_named_model("cpu-smoke/best", "").record is None, "no stage is called so"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("new=@best", ("new", "@best")),
        ("./a=b", ("", "./a=b")),
        ("pypi:pack==1.2/m.gguf", ("", "pypi:pack==1.2/m.gguf")),
        ("small=pypi:pack==1.2/m.gguf", ("small", "pypi:pack==1.2/m.gguf")),
    ],
)
def test_a_version_is_no_name_for_a_model(text: str, told: tuple[str, str]) -> None:
    assert serve._named(text) == told


def test_a_digest_of_another_kind_is_none_of_this_kind(home: Path) -> None:
    with pytest.raises(InputError, match="no run, run name or recipe `sft`"):
        find_named_model(f"sft/{RL[:4]}", "")


def test_a_store_is_opened_with_no_other_run_s_credentials(home: Path) -> None:
    secret = load_recipe("cpu-smoke", ["storage.root=file:///else", "storage.credentials=block"])
    entry = RunEntry(
        run="secret", name="", recipe="other", root=secret.storage.root, credentials="block",
        created=time.time() + 60,
    )  # fmt: skip
    (home / "runs/secret.json").write_text(entry.model_dump_json())
    root = artifact_store().store.root
    assert store_at(root).root == root
    with pytest.raises(InfrastructureError, match="Secret block `block`"):
        store_at("file:///else")


def needed(keep_runs: int, *aliases: AliasedArtifact) -> tuple[set[str], dict[str, list[str]]]:
    found = survey(artifact_store(), keep_runs, list(aliases))
    assert found.uncertain == []
    return {each.digest for each in found.unneeded}, found.kept


def test_what_no_kept_run_needs_could_go(home: Path) -> None:
    assert needed(2)[0] == {digest("nobody's")}
    unneeded, kept = needed(1)
    assert unneeded == {digest("nobody's"), OLD}
    assert kept.keys() == {BASE[:12], SFT[:12], RL[:12]}


def test_best_alone_is_the_expert_that_the_latest_run_was_of(home: Path) -> None:
    """Its recipe has a unified model, which that run did not make."""
    new_run(load_recipe("cpu-smoke"), "expert", {"name": "agent"}, in_process=True)
    with pytest.raises(InfrastructureError, match="cpu-smoke-agent@best is an alias in MLflow"):
        locate_artifact("@best", "")


def test_aliases_pins_and_running_runs_keep_theirs(home: Path) -> None:
    alias = AliasedArtifact("cpu-smoke-agent", "best", OLD, "file:///x/artifacts/sft/1/a1")
    assert needed(1, alias)[0] == {digest("nobody's")}
    assert command("artifacts", "pin", digest("nobody's")[:12], "--note", "for the paper") == 0
    unneeded, kept = needed(1)
    assert unneeded == {OLD}
    assert kept[digest("nobody's")[:12]] == ["pinned: for the paper"]
    assert command("artifacts", "unpin", digest("nobody's")[:12]) == 0
    running = put_run({"agent-sft": ("sft", OLD)}, state="running")
    put_run({"base": ("base", BASE)})
    unneeded, kept = needed(1)
    assert unneeded == {SFT, RL, digest("nobody's")}
    assert kept[OLD[:12]] == [f"run {running.run}"]


@pytest.mark.parametrize(
    "told",
    [
        {"base": {"folder": "{place}"}},
        {"data": [{"files": ["{place}/rows/*.jsonl"]}]},
        {"domain": {"rewards": [{"served": {"model": "{place}"}}]}},
    ],
)
def test_a_kept_run_keeps_what_its_recipe_names(home: Path, told: dict[str, Any]) -> None:
    place = f"file://{home}/store/artifacts/sft/{OLD[:12]}/a1"
    record = put_run({"base": ("base", BASE)})
    head = record.head()
    told = json.loads(json.dumps(told).replace("{place}", place))
    put_head(record, head.model_copy(update={"recipe": {**head.recipe, **told}}))
    unneeded, kept = needed(1)
    assert OLD not in unneeded
    assert kept[OLD[:12]] == [f"run {record.run}"]
    put_run({"base": ("base", BASE)})
    assert OLD in needed(1)[0], "the run that named it is no longer kept"


def test_a_kept_evaluation_keeps_the_models_it_was_given(home: Path) -> None:
    record = put_run({"base": ("base", BASE)})
    models = {"old": f"{home}/store/artifacts/sft/{OLD[:12]}/a1/"}
    put_head(record, record.head().model_copy(update={"arguments": {"models": models}}))
    assert OLD not in needed(1)[0]


def put_head(record: RunRecord, head: RunHead) -> None:
    record.store.write(f"runs/{record.run}/recipe.json", head.model_dump_json().encode())


def test_a_running_run_keeps_what_it_will_reach(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_run({}, state="running")

    class Planned:
        digest = OLD

    monkeypatch.setattr(
        "flows.command.models.collect.planned_identities", lambda plan, user: {"a": Planned()}
    )
    put_run({"base": ("base", BASE)})
    assert OLD not in needed(1)[0]

    def fail(plan: object, user: object) -> None:
        raise InputError("its hook is gone")

    monkeypatch.setattr("flows.command.models.collect.planned_identities", fail)
    found = survey(artifact_store(), 1, [])
    assert "its hook is gone" in found.uncertain[0]


def test_what_is_young_stays(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flows.command.models.collect.YOUNG_S", 3600.0)
    assert needed(1)[0] == set()


def test_gc_shows_first_and_deletes_when_told(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store: Store = artifact_store().store
    store.write(f"checkpoints/sft/{OLD[:12]}/step-00000001-a1/manifest.json", b"x" * 1000)
    assert command("artifacts", "gc", "--keep-runs", "1", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert {each["digest"] for each in told["unneeded"]} == {OLD, digest("nobody's")}
    assert told["bytes"] > 1000
    assert not told["deleted"]
    assert len(artifact_store().list()) == 5
    assert command("artifacts", "gc", "--keep-runs", "1") == 0
    assert "Nothing was deleted; --yes deletes it." in capsys.readouterr().out
    assert command("artifacts", "gc", "--keep-runs", "1", "--yes") == 0
    assert {record.digest for record in artifact_store().list()} == {BASE, SFT, RL}
    assert store.listdir("checkpoints/sft") == []
    assert locate_artifact("agent-rl", "")[1].digest == RL


def test_gc_deletes_nothing_while_it_cannot_ask_mlflow(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "mlflow").mkdir()
    assert command("artifacts", "gc", "--keep-runs", "1", "--yes") == 2
    assert "MLflow's aliases: the stack is down" in capsys.readouterr().err
    assert len(artifact_store().list()) == 5


def test_gc_says_so_when_its_second_look_finds_less_out_than_its_first(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([[], None])
    monkeypatch.setattr("flows.command.models.collect._aliases", lambda: next(answers))
    assert command("artifacts", "gc", "--keep-runs", "1", "--yes", "--json") == 2
    told = capsys.readouterr()
    assert "MLflow's aliases: the stack is down" in told.err
    assert told.out == "", "nothing that says it was deleted"
    assert len(artifact_store().list()) == 5


def test_an_unfinished_stage_of_a_dropped_run_goes_with_it(home: Path) -> None:
    store, left = artifact_store().store, digest("unfinished")
    store.write(f"checkpoints/rl/{left[:12]}/step-00000001-a1/manifest.json", b"x")
    assert left[:12] not in needed(1)[0]
    run = put_run({"agent-rl": ("rl", left)}, state="failed")
    assert left[:12] not in needed(1)[0]
    put_run({"base": ("base", BASE), "agent-sft": ("sft", SFT), "agent-rl": ("rl", RL)})
    assert left[:12] in needed(1)[0]
    run.put_stage(StageRecord(name="agent-rl", kind="rl", digest=left, state="running"))
    assert left[:12] not in needed(1)[0], "of a suspended run the job goes on"


def test_serve_refuses_what_cannot_be_served_before_it_starts_anything(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for arguments, told in (
        ((), "name at least one model"),
        (("agent-rl", "agent-rl"), "two models would be called agent-rl"),
        (("a b=agent-rl",), "a model's name has letters"),
        (("agent-rl", "--api-key-from", "UNSET_KEY"), "UNSET_KEY: that variable is not set"),
        (("agent-rl", "--sglang", "nonsense"), "write it as NAME=VALUE"),
        (("agent-rl", "--sglang", "x=[1"), "--sglang x=[1: the value is not YAML"),
        (("agent-rl", "--servers", "0"), "--servers 0: give a whole number of at least 1"),
        (("agent-rl", "--tp", "0"), "--tp 0: give a whole number of at least 1"),
    ):
        assert command("serve", *arguments) == 2, arguments
        assert told in capsys.readouterr().err.replace("\n", " ")


def test_a_recipe_for_strangers_names_no_place_of_its_owners_machines(home: Path) -> None:
    chats = {"files": ["/data/me/chats/*.jsonl"]}
    prompts = {"sources": {"files": ["s3://secret/prompts.jsonl"], "columns": {"prompt": "ask"}}}
    options = {"prompt": "{answer}", "pattern": "([0-9])"}
    models = {"own": "/data/me/judge", "hub": "hf:org/judge", "made": "own-sft"}
    judges = [
        {
            "name": "judge",
            "label": role,
            "options": options,
            "served": {"model": model, "role": role},
        }
        for role, model in models.items()
    ]
    domain = {
        "curriculum": {"name": "files", "options": prompts},
        "rewards": [{"name": "exact", "outcome": True}, *judges],
        "max_new_tokens": 16,
    }
    rl = {"steps": 4, "optimizer": {"lr": 1e-6}, "fleet": {"external": ["http://10.0.0.7:30000"]}}
    sft = {"steps": 2, "optimizer": {"lr": 1e-5}, "data": chats}
    recipe = validate_recipe(
        {
            "name": "mine",
            "base": {"folder": "/data/me/model"},
            "experts": {"own": {"domain": domain, "path": [{"sft": sft}, {"rl": rl}]}},
            "hooks": ["/data/me/mine.py"],
            "lm_eval": {"tasks": ["mine"], "folder": "/data/me/tasks"},
        },
        "a test",
    )
    told = recipe_for_strangers(recipe)
    assert told["base"] == {"folder": "model"}
    assert told["hooks"] == ["mine.py"]
    assert told["lm_eval"]["folder"] == "tasks"
    rewards = told["experts"]["own"]["domain"]["rewards"]
    asked = [reward["served"]["model"] for reward in rewards if "served" in reward]
    assert asked == ["judge", "hf:org/judge", "own-sft"]
    assert "*.jsonl" in (text := json.dumps(told))
    assert '{"prompt": "ask"}' in text
    for private in ("/data/me", "s3://secret", "10.0.0.7"):
        assert private not in text


@pytest.mark.parametrize(
    ("variable", "header"),
    [
        ("MY_KEY", '-H "Authorization: Bearer $MY_KEY"'),
        ("", '-H "Authorization: Bearer $(cat HOME/key)"'),
    ],
)
def test_the_request_that_serve_prints_carries_the_key_that_is_asked_for(
    variable: str, header: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path))
    shown = shown_key(variable)
    fleet = ServedFleet(model=str(tmp_path))
    model = ServedModel("agent", tmp_path, Parsers("none", "none"), fleet)
    said = "\n".join(ready_lines("http://127.0.0.1:8000", [model], shown))
    assert header.replace("HOME", str(tmp_path)) in said
