"""That `make gpu` finds its parts, and that the trainer's half needs neither Ray nor SGLang."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.programs.gpu import __main__ as gpu
from tests.programs.gpu.__main__ import PARTS, Part, main
from tests.programs.gpu.random_model import TINY, write_random_model
from tests.programs.gpu.settings import sequences
from tests.programs.gpu.whole_recipe import RECIPE

pytestmark = pytest.mark.unit

_NOT_THERE = ("ray", "sglang", "prefect", "mlflow", "transformers", "tokenizers", "s3fs", "httpx")
_WITHOUT_THEM = f"""
import importlib.abc, sys

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {_NOT_THERE!r}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())
import tests.programs.gpu.__main__
for part in tests.programs.gpu.__main__.PARTS:
    importlib.import_module("tests.programs.gpu." + part.function.rpartition(".")[0])
"""


def test_every_part_is_a_function_with_a_name_of_its_own() -> None:
    assert len({part.name for part in PARTS}) == len(PARTS)
    for part in PARTS:
        module, _, function = part.function.rpartition(".")
        assert callable(getattr(importlib.import_module(f"tests.programs.gpu.{module}"), function))


def test_all_parts_import_without_ray_and_sglang() -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-c", _WITHOUT_THEM], check=True, timeout=300)


def test_the_whole_recipe_is_one_that_a_host_with_a_gpu_accepts(tmp_path: Path) -> None:
    """Its driver is a folder with a version, as far as anything asks before a GPU is used."""
    (tmp_path / "version").touch()
    script = (
        "import sys; from pathlib import Path; from infra import cuda\n"
        f"cuda._DRIVER = Path({str(tmp_path)!r})\n"
        "from flows.checks.recipe_checks import check_recipe; from flows.load import load_recipe\n"
        "from flows.post_train import plan_post_train\n"
        f"recipe = load_recipe({str(RECIPE)!r})\n"
        "check_recipe(recipe, plan_post_train(recipe)); print(cuda.has_cuda())"
    )
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "0"}
    command = [sys.executable, "-W", "ignore", "-c", script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.stdout == "True\n", done.stderr


def test_what_was_found_stays_when_time_is_over_or_the_program_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second part that would take longer than there is, and one during which somebody ends it."""
    (tmp_path / "parts_of_a_test.py").write_text(
        "import os, signal, time\n"
        "from tests.programs.bench.rows import Row\n"
        "def quick(): return [Row('a figure', 1.0, 's')]\n"
        "def slow(): time.sleep(60)\n"
        "def ended(): os.kill(os.getppid(), signal.SIGTERM); time.sleep(60)\n"
    )
    found = Path.cwd()
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{found}")
    monkeypatch.setattr(gpu, "_measuring", lambda part, file: ["-c", _MEASURE, part.function, file])
    monkeypatch.setattr(gpu, "BUILD", tmp_path)
    monkeypatch.setattr(gpu, "_LEAST_S", 1)
    before = signal.getsignal(signal.SIGTERM)
    try:
        for parts, together_s, said in (
            ([Part("quick"), Part("slow", 2)], 60, "slow: CUT OFF after 2 s"),
            ([Part("quick"), Part("ended")], 60, "ended before its last part"),
        ):
            monkeypatch.setattr(gpu, "PARTS", parts)
            monkeypatch.setattr(gpu, "TOGETHER_S", together_s)
            assert main([]) == 1
            shown = capsys.readouterr().out
            assert said in shown
            assert shown.count("a figure") == 2, "at once, and in the table"
            (row,) = json.loads((tmp_path / "gpu.json").read_text())["rows"]
            assert row["name"] == "a figure"
        monkeypatch.setattr(gpu, "TOGETHER_S", 0)
        assert main([]) == 1
        assert "quick: NOT RUN: no time is left" in capsys.readouterr().out
    finally:
        signal.signal(signal.SIGTERM, before)


_MEASURE = (
    "import json, sys, dataclasses, parts_of_a_test as parts\n"
    "rows = getattr(parts, sys.argv[1])()\n"
    "open(sys.argv[2], 'w').write(json.dumps([dataclasses.asdict(row) for row in rows]))\n"
)


def test_an_unknown_part_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sped"]) == 2
    assert "sped" in capsys.readouterr().out


def test_a_random_model_is_always_the_same(tmp_path: Path) -> None:
    folders = [write_random_model(tmp_path / name, TINY) for name in "ab"]
    a, b = ((folder / "model.safetensors").read_bytes() for folder in folders)
    assert a == b
    assert json.loads((folders[0] / "config.json").read_text())["hidden_size"] == TINY.hidden


def test_sequences_are_long_tailed_and_never_train_their_first_token() -> None:
    drawn = sequences(100, 200, 600)
    lengths = np.array([len(s.tokens) for s in drawn])
    assert lengths.max() > 4 * np.median(lengths)
    assert lengths.min() >= 2
    assert all(s.loss_mask[0] == 0 and all(s.loss_mask[1:]) for s in drawn)
    assert max(max(s.tokens) for s in drawn) < 100
