"""A stage that runs although its result is stored: equal results change nothing, others go on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flows.command.main import main
from flows.running.records import StageRecord, find_run

pytestmark = pytest.mark.integration

STAGE = """
import json
import shutil
import time
from pathlib import Path
from typing import ClassVar

from infra.config import Config
from tasks.path_context import Place
from tasks.stage import StageSpec


class Settings(Config):
    says: str


class Marked(StageSpec):
    kind: ClassVar[str] = "marked"
    makes = "model"
    settings: Settings


async def run(spec, context):
    shutil.copytree(context.inputs["model"], context.out, dirs_exist_ok=True)
    (context.out / "training").mkdir(exist_ok=True)
    (context.out / "training" / "trace.json").write_text(
        json.dumps({"traceEvents": [], "otherData": {"began": time.time(), "dropped": 0}})
    )
    shutil.copy(spec.settings.says, context.out / f"{context.name}.txt")
    return {"marks": 1.0}
"""
RECIPE = """
name: again
base:
  random: {hidden_size: 16, layers: 1, heads: 2, kv_heads: 1, head_dim: 8, ffn_size: 16,
           vocab_size: 300, tokenizer_texts: 8}
hooks: [marked.py]
experts:
  reasoning:
    domain: {curriculum: {name: reasoning}, rewards: [{name: math, outcome: true}]}
    path: [{"marked:Marked": {says: FIRST}}, {"marked:Marked": {says: SECOND}}]
"""


def ended(*arguments: str) -> Any:
    with pytest.raises(SystemExit) as end:
        main([*arguments])
    return end.value.code


def stages(run: str) -> dict[str, StageRecord]:
    return find_run(run).stages()


def test_a_forced_stage_counts_only_if_its_result_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path / "home"))
    words = {name: tmp_path / f"{name.lower()}.txt" for name in ("FIRST", "SECOND")}
    text = RECIPE
    for name, file in words.items():
        file.write_text("one")
        text = text.replace(name, str(file))
    (tmp_path / "marked.py").write_text(STAGE)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(text)

    def run(name: str, *options: str) -> dict[str, StageRecord]:
        until = ("--until", "reasoning-marked-2", "--in-process", "--name", name)
        assert ended("run", str(recipe), *until, *options) == 0
        return stages(name)

    first = run("first")
    assert set(first) == {"base", "reasoning-marked", "reasoning-marked-2"}

    equal = run("equal", "--force", "reasoning-marked")
    assert equal["reasoning-marked"].state == "completed"
    assert equal["reasoning-marked"].digest != first["reasoning-marked"].digest
    assert "every file is the same" in equal["reasoning-marked"].message
    assert equal["reasoning-marked-2"].state == "cached"
    assert "reasoning-marked: ran again: every file is the same" in capsys.readouterr().out

    words["FIRST"].write_text("two")  # nothing of it is in the digest
    other = run("other", "--force", "reasoning-marked")
    assert "another result than marked/" in other["reasoning-marked"].message
    assert "in reasoning-marked.txt" in other["reasoning-marked"].message
    assert other["reasoning-marked-2"].state == "completed"
    assert other["reasoning-marked-2"].digest != first["reasoning-marked-2"].digest

    assert ended("resume", "other") == 0
    plain = run("plain")
    assert {name: s.digest for name, s in plain.items()} == {n: s.digest for n, s in first.items()}
    assert {stage.state for stage in plain.values()} == {"cached"}

    capsys.readouterr()
    assert ended("diff", "other", str(recipe), "--json") == 0
    found = {s["stage"]: s for s in json.loads(capsys.readouterr().out)["stages"]}
    assert found["base"]["state"] == "cached"
    said = "other was told to run it again"
    assert found["reasoning-marked"]["reasons"] == [{"part": "setting", "text": said}]
    assert ended("report", "other", "--json") == 0
    assert json.loads(capsys.readouterr().out)["state"] == "completed"
