"""Models on their way out: exported, pushed to S3 and to a stand-in for a hub."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.command.main import main
from flows.command.models.export import export_model
from flows.command.models.named_artifacts import NamedModel, find_named_model
from infra.errors import CorruptArtifact
from infra.store.store import Store
from tests.parts.chat_parts import random_base
from tests.parts.hub import TOKEN, Hub, hub_standin, use_hub
from tests.parts.machine import BUCKET
from tests.parts.run_records import put_artifact, put_run
from tests.parts.s3_services import Service

pytestmark = pytest.mark.integration

BASE, SFT, GONE = (hashlib.sha256(name).hexdigest() for name in (b"base", b"sft", b"gone"))


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NamedModel:
    """An SFT model of a run on record, whose other input the store has lost."""
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path / "home"))
    folder = random_base(tmp_path / "model")
    put_artifact("base", BASE, folder)
    (folder / "counts.jsonl").write_text("{}")
    (folder / "training").mkdir()
    (folder / "training" / "trace.json").write_text("{}")
    (folder / "LICENSE").write_text("terms")
    card = "---\nlicense: apache-2.0\n---\n# The base\n"
    (folder / "README.md").write_text(card)
    put_artifact("sft", SFT, folder, {"model": BASE, "data": GONE})
    run = put_run({"base": ("base", BASE), "agent-sft": ("sft", SFT)})
    return find_named_model(f"{run.run}/agent-sft", "")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with hub_standin() as hub:
        use_hub(hub, monkeypatch, tmp_path / "hub-cache", TOKEN)
        yield hub


def command(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return int(ended.value.code or 0)


def test_an_export_is_whole_readable_and_says_what_it_is(model: NamedModel, tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        made = export_model(model, tmp_path / "out" / "agent")
    finally:
        os.umask(before)
    ends = json.loads((made.folder / "generation_config.json").read_text())["eos_token_id"]
    assert len(made.stops) == len(ends) > 1
    names = {path.name for path in made.folder.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "LICENSE"} <= names
    assert not names & {"counts.jsonl", "training"}
    assert {path.stat().st_mode & 0o777 for path in made.folder.iterdir()} == {0o644}
    assert made.folder.stat().st_mode & 0o777 == 0o755
    card = (made.folder / "README.md").read_text()
    for told in ("license: apache-2.0", "# agent", f"sft/{SFT[:12]}", f"base/{BASE[:12]}",
                 f"{GONE[:12]} | data | not in the store any more", "stage `agent-sft`",
                 "AutoModelForCausalLM", "name: cpu-smoke", "seed 7; 0123456789ab"):  # fmt: skip
        assert told in card, told
    assert str(tmp_path) not in card, "nobody needs to know where it was made"
    assert "storage" not in card
    lineage = json.loads((made.folder / "lineage.json").read_text())
    assert [a["digest"] for a in lineage["artifacts"]] == [SFT, BASE, GONE]
    sums = lineage["artifacts"][0]["files"]
    weights = (made.folder / "model.safetensors").read_bytes()
    assert sums["model.safetensors"] == hashlib.sha256(weights).hexdigest()


def test_nothing_is_overwritten_or_left_half_done(
    model: NamedModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "mine").write_text("mine")
    assert command("export", "agent-sft", taken) == 2
    assert "is not empty: give another folder" in capsys.readouterr().err
    broken = tmp_path / "broken"
    random_base(broken)
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 2}))
    with pytest.raises(CorruptArtifact, match="missing_keys"):
        export_model(NamedModel("broken", broken), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_the_folder_that_one_is_in_can_be_filled(
    model: NamedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    assert command("export", "agent-sft", ".") == 0
    assert "# here" in (here / "README.md").read_text()
    assert Path("config.json").is_file()


def test_a_push_to_s3_needs_an_empty_prefix(
    model: NamedModel,
    s3: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    Service(s3, "test", "test").enter(monkeypatch)
    to = f"s3://{BUCKET}/pushed-{secrets.token_hex(4)}"
    assert command("push", "agent-sft", to, "--license", "mit") == 0
    assert "license: mit" in Store(to).read("README.md").decode()
    assert find_named_model(to, "").folder.joinpath("model.safetensors").is_file()
    assert command("push", "agent-sft", to) == 2
    assert "push to an empty prefix" in capsys.readouterr().err
    bucket = f"s3://pushed-{secrets.token_hex(4)}"
    Store(bucket).fs.mkdir(bucket)
    assert command("push", "agent-sft", bucket) == 0
    assert "config.json" in Store(bucket).listdir("")


def test_a_push_to_a_hub_is_one_commit_that_comes_back_the_same(
    model: NamedModel,
    hub: Hub,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command("push", "agent-sft", "hf:lab/agent") == 0
    assert f"{hub.url}/lab/agent/commit/" in capsys.readouterr().out
    repo = hub.repos["lab/agent"]
    assert (repo.is_private, repo.messages) == (True, [f"Upload sft/{SFT[:12]}"])
    back = find_named_model("hf:lab/agent", "").folder
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (back / name).read_bytes() == (model.folder / name).read_bytes()
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    assert command("push", "agent-sft", "hf:lab/other") == 2
    assert "the hub refused the token (401)" in capsys.readouterr().err
    assert command("push", "agent-sft", "./folder") == 2
    assert "push to s3://BUCKET/PREFIX or to hf:ORG/NAME" in capsys.readouterr().err
