"""Custom advantages and losses by path: by command, in a recipe, and without any engine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from engines.algorithms.advantages import CustomAdvantage, advantages
from engines.algorithms.contract import example_step
from engines.algorithms.losses import CustomLoss, policy_loss
from flows.checks.recipe_checks import check_recipe
from flows.command.declared import models as cli
from flows.load import load_recipe
from flows.post_train import plan_post_train
from infra.errors import InputError

pytestmark = pytest.mark.unit

EXAMPLES = Path(__file__).parents[4] / "examples" / "custom_algorithm"


@pytest.mark.parametrize(
    ("path", "options", "code", "said"),
    [
        ("best_of_group:advantage", "", 0, "keeps the contract of a custom advantage"),
        ("soft_clip:loss", '{"width": 0.5}', 0, "keeps the contract of a custom loss"),
    ],
)
def test_the_example_hooks_keep_it(path, options, code, said, monkeypatch, capsys) -> None:
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(cli.console, "_width", 200)
    assert cli.check_hook(path, options=options) == code
    assert said in capsys.readouterr().out.replace("\n", "")


def test_a_hook_that_breaks_it_exits_1(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path / "home"))
    file = tmp_path / "my_wrong_loss.py"
    file.write_text(
        "from engines.algorithms.inputs import LossInputs, PolicyLoss\n"
        "def loss(tokens: LossInputs) -> PolicyLoss:\n"
        "    return PolicyLoss(tokens.logprobs_R, tokens.logprobs_R > 0)\n"
    )
    assert cli.check_hook(f"{file}:loss") == 1
    assert (
        "raises the probability of tokens with a positive advantage"
        in capsys.readouterr().out.replace("\n", " ")
    )


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (
            "def check(completions, **kwargs):\n    return [1.0]\n",
            "completions=[transcript.answer]",
        ),
        ("def my_score(text):\n    return len(text)\n", "its text is `transcript.answer`"),
    ],
)
def test_a_reward_is_known_without_annotations_and_told_what_it_is_called_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], source: str, said: str
) -> None:
    file = tmp_path / "plain_reward.py"
    file.write_text(source)
    name = source.split("(")[0].removeprefix("def ")
    assert cli.check_hook(f"{file}:{name}") == 1
    assert said in capsys.readouterr().out.replace("\n", " ")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("nothing", "write the file and the part in it, with a colon between"),
        ("os:getcwd", "does not show its kind.* --kind with one of advantage, loss, data-source"),
        ("no_such_module_here:loss", "no module"),
    ],
)
def test_a_hook_that_cannot_be_found_is_bad_input(path: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        cli.check_hook(path)


@pytest.mark.parametrize("part", ["advantage", "loss"])
def test_a_custom_part_names_itself_where_it_is_wrong(part: str) -> None:
    def use(path: str, **options: object) -> None:
        if part == "advantage":
            made = CustomAdvantage(kind="custom", path=path, options=options)
            advantages(made, example_step())
        else:
            policy_loss(CustomLoss(kind="custom", path=path, options=options))

    with pytest.raises(InputError, match=f"^unknown {part} 'nothing'"):
        use("nothing")
    with pytest.raises(InputError, match=f"^{part} 'math:fsum' has no option 'width'"):
        use("math:fsum", width=1)


def test_check_tries_the_custom_parts_of_a_recipe(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path / "home"))
    hook = EXAMPLES / "soft_clip.py"

    def recipe_with(path: str):
        loss = f"{{kind: custom, path: '{path}'}}"
        return load_recipe(
            "cpu-smoke", [f"hooks=[{hook}]", f"experts.agent.path.rl.algorithm.loss={loss}"]
        )

    recipe = recipe_with("soft_clip:lost")
    with pytest.raises(InputError, match=r"agent-rl: algorithm.loss: .*did you mean|Did you mean"):
        check_recipe(recipe, plan_post_train(recipe))


def test_estimators_load_no_engine_and_their_settings_no_torch() -> None:
    code = (
        "import importlib, pkgutil, sys, engines.algorithms as a\n"
        "of_tensors = {'contract', 'linear_logprobs', 'sequence_sums'}\n"
        "found = pkgutil.walk_packages(a.__path__, a.__name__ + '.')\n"
        "names = {m.name.removeprefix('engines.algorithms.') for m in found}\n"
        "for name in names - of_tensors:\n"
        "    importlib.import_module('engines.algorithms.' + name)\n"
        "print(len(names - of_tensors) > 9, 'torch' in sys.modules)\n"
        "for name in of_tensors:\n"
        "    importlib.import_module('engines.algorithms.' + name)\n"
        "print([m for m in ('megatron', 'ray', 'sglang', 'transformers') if m in sys.modules])\n"
    )
    root = Path(__file__).parents[4]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines() == ["True False", "[]"], done.stderr


def test_the_example_recipe_is_accepted(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path))
    recipe = load_recipe(str(EXAMPLES / "recipe.yaml"))
    check_recipe(recipe, plan_post_train(recipe))
