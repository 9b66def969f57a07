"""Parts of sampling that a recipe names: refused, accepted, and tried by command."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from flows.checks.recipe_checks import check_recipe
from flows.command.declared import models as cli
from flows.load import load_recipe
from flows.post_train import plan_post_train
from flows.reasons import planned_identities
from infra.errors import InputError
from infra.user_files import install_hooks, read_hooks
from tasks.rl.spec import RlSettings
from tests.parts.recipe_parts import try_here

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("own_home")]

EXAMPLES = Path(__file__).parents[4] / "examples"
RL = "unified.path.rl"
SOURCE = """
from engines.rollout.sources import Pick

class Learns:
    def pick(self, number):
        return Pick("agent")

    def told(self, result): ...

class Filter:
    def keep(self, group):
        return len(group.samples)
"""


def _check(*changes: str, recipe: str = "cpu-smoke") -> None:
    loaded = load_recipe(recipe, changes)
    check_recipe(loaded, plan_post_train(loaded))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["data_source.name=weihted"], "data_source: unknown data source 'weihted'. Did you mean"),
        (
            ["data_source={name: weighted, options: {weights: {agent: 2}}}"],
            "weights are given to agent; the stage's domains are agent, general, reasoning",
        ),
        (["data_source={name: in-turns, options: {a: 1}}"], "has no options; remove a"),
        (["data_source={name: 'mine:Learns'}", "max_staleness=1"], "learns from results"),
        (
            ["group_filter={name: outcome-between, options: {above: 2}}"],
            "0 <= above < below <= 1 must hold",
        ),
        (
            ["group_filter.name=mine:Filter"],
            "mine:Filter breaks the contract: answers a bool or a reason: answered 4, which is no",
        ),
        (["group_filter.timeout_s=9999"], "can-teach may take timeout_s 9999"),
        (["buffer.name=newest"], "unknown buffer 'newest'. Built in: oldest-first"),
        (["buffer.name=mine:Learns"], "Learns lacks take.., keeps.."),
        (["buffer={name: oldest-first, options: {a: 1}}"], "has no options; remove a"),
    ],
)
def test_a_part_that_cannot_be_used_is_refused_before_the_run(
    changes: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flows.checks.trial.findings.try_apart", try_here)
    (tmp_path / "mine.py").write_text(SOURCE)
    hooks = f"hooks=[{tmp_path / 'mine.py'}]"
    with pytest.raises(InputError, match=f"stage unified-rl: .*{said}"):
        _check(hooks, *[f"{RL}.{change}" for change in changes])


def test_ours_are_accepted() -> None:
    weights = "{agent: 2, general: 1, reasoning: 0.5}"
    _check(
        f"{RL}.data_source={{name: weighted, options: {{weights: {weights}}}}}",
        f"{RL}.group_filter={{name: outcome-between, options: {{below: 0.9}}}}",
    )


@pytest.mark.parametrize(
    "example",
    ["best_of_n", "fan_out", "group_filter", "replay_buffer", "data_source", "group_reward"],
)
def test_the_examples_are_accepted(example: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flows.checks.trial.findings.try_apart", try_here)
    _check(recipe=str(EXAMPLES / example / "recipe.yaml"))


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("best_of_n/best_of_n.py:BestOfN", "driver"),
        ("fan_out/second_look.py:SecondLook", "driver"),
        ("group_filter/not_cut_off.py:NotCutOff", "group-filter"),
        ("replay_buffer/widest_first.py:WidestFirst", "buffer"),
        ("data_source/hard_again.py:HardAgain", "data-source"),
        ("fourth_expert/sorting.py:Sorting", "curriculum"),
        ("fourth_expert/sorting.py:SortedExactly", "reward"),
        ("group_reward/shorter.py:shorter", "reward"),
    ],
)
def test_the_command_knows_the_kind_of_an_example_and_that_it_keeps_its_contract(
    path: str, kind: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli.console, "_width", 200)
    assert cli.check_hook(str(EXAMPLES / path)) == 0
    assert f"keeps the contract of a custom {kind}: " in capsys.readouterr().out


WRONG = """
class Hangs:
    async def run(self, problem, sessions):
        raise ConnectionError("my harness is down")

class NoDemonstrations:
    def problems(self, split, count, seed, start=0):
        return []

    def demonstrations(self, count, seed):
        return []

    def environment(self):
        return None

class Reward:
    async def __call__(self, transcript):
        return [0.5, 0.5]
"""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Hangs", "driver: ConnectionError: my harness is down"),
        ("NoDemonstrations", "2 were asked for, 0 came"),
        ("Reward", "returned list [0.5, 0.5]: a reward returns its score as one number"),
    ],
)
def test_the_command_says_what_a_part_of_a_domain_breaks(
    name: str,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cli.console, "_width", 200)
    (tmp_path / "wrong_parts.py").write_text(WRONG)
    assert cli.check_hook(f"{tmp_path / 'wrong_parts.py'}:{name}") == 1
    assert said in " ".join(capsys.readouterr().out.split())
    sys.modules.pop("wrong_parts", None)


REWARDS = """
def plain(transcript):
    return "42" in transcript.answer

async def waits(transcript):
    return "boxed" in transcript.answer

class Counts:
    def __call__(self, transcript):
        return min(1.0, len(transcript.answer) / 100)

def none():
    return 1.0
"""


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("waits", 0, "keeps the contract of a custom reward"),
        ("Counts", 0, "keeps the contract of a custom reward"),
        ("plain", 0, "Of reasoning, the first is '\\\\boxed{"),
        (
            "none --kind reward",
            1,
            "none() made float 1.0, which is not a reward. Write `def",
        ),
    ],
)
def test_a_reward_may_be_a_plain_function_with_a_plain_number(
    name: str,
    code: int,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cli.console, "_width", 400)
    (tmp_path / "plain_rewards.py").write_text(REWARDS)
    name, _, kind = name.partition(" --kind ")
    assert cli.check_hook(f"{tmp_path / 'plain_rewards.py'}:{name}", kind=kind) == code
    assert said in " ".join(capsys.readouterr().out.split())
    sys.modules.pop("plain_rewards", None)


def test_a_reward_is_tried_on_the_curriculum_of_its_recipe_or_the_one_that_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli.console, "_width", 400)
    file = Path(cli.__file__).parents[2] / "starter" / "my_reward.py"
    assert cli.check_hook(f"{file}:right_answer") == 0
    assert "note" not in capsys.readouterr().out
    alone = tmp_path / "my_reward.py"
    alone.write_text(file.read_text())
    assert cli.check_hook(f"{alone}:right_answer") == 0
    assert "Of reasoning, the first is" in capsys.readouterr().out
    domain = alone.with_name("my_domain.py")
    text = file.with_name("my_domain.py").read_text()
    env = file.with_name("my_environment.py").read_text().partition("import annotations\n")[2]
    imported = "from my_environment import MyEnvironment, answer_call\n"
    domain.write_text(text.replace(imported, env))
    assert cli.check_hook(f"{alone}:right_answer", curriculum=f"{domain}:MyDomain") == 0
    assert "note" not in capsys.readouterr().out
    assert cli.check_hook(f"{file}:right_answer", curriculum="reasoning") == 0
    assert "Of reasoning, the first is" in capsys.readouterr().out
    for name in ("my_domain", "my_reward", "my_environment"):
        sys.modules.pop(name, None)


def test_what_changes_a_stage_is_its_part_and_no_other(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"

    def digests(text: str, *changes: str) -> dict[str, str]:
        file.write_text(text)
        loaded = load_recipe("cpu-smoke", [f"hooks=[{file}]", *changes])
        user = install_hooks(read_hooks(loaded.hooks, loaded.data))
        plan = plan_post_train(loaded)
        return {name: i.digest for name, i in planned_identities(plan, user).items()}

    named = f"experts.agent.path.rl.buffer={{name: '{file.stem}:Learns'}}"
    before, after = digests(SOURCE, named), digests(f"{SOURCE}\nchanged = True\n", named)
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {
        "agent-rl", "unified-distill", "unified-sft", "unified-rl", "evaluate",
    }  # fmt: skip
    assert digests(SOURCE) == digests(f"{SOURCE}\nchanged = True\n")


@pytest.mark.parametrize(
    ("algorithm", "named", "drops"),
    [
        ("grpo", "can-teach", True),
        ("ppo", "can-teach", False),
        ("grpo", "every", False),
        ("ppo", "outcome-between", True),
    ],
)
def test_more_is_drawn_only_where_a_group_may_be_dropped(
    algorithm: str, named: str, drops: bool
) -> None:
    settings = RlSettings.model_validate(
        {
            "steps": 1,
            "optimizer": {"lr": 1e-4},
            "algorithm": {"preset": algorithm},
            "group_filter": {"name": named},
        }
    )
    assert settings.drops_groups == drops
