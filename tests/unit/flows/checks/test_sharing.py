"""`share: true` is refused where trainer and servers cannot take turns."""

from __future__ import annotations

import pytest

from flows.checks.recipe_checks import check_recipe
from flows.load import load_recipe
from flows.post_train import plan_post_train
from infra.errors import InputError
from tests.parts.recipe_parts import unreachable_s3

pytestmark = pytest.mark.unit

SHARE = "resources.stages.unified-rl.share=true"


def _check(*changes: str) -> None:
    recipe = load_recipe("cpu-smoke", [SHARE, *changes])
    check_recipe(recipe, plan_post_train(recipe))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            ["unified.path.rl.max_staleness=1"],
            "`max_staleness: 0` or `partial_rollout_tokens`",
        ),
        (["unified.path.rl.fleet={external: ['http://h:1']}"], "servers that are not ours"),
        (
            ["unified.path.rl.fleet={sglang: {enable_memory_saver: false}}"],
            "needs fleet.sglang.enable_memory_saver",
        ),
        (
            ["resources.stages.unified-rl.weights={transport: disk_delta, url: /shared}"],
            "set it to `auto`",
        ),
        (
            ["resources.stages.unified-rl.trainer={dp: 1}"],
            r"ranks, which are 1; servers x tp_per_server may be at most that and is 2",
        ),
    ],
)
def test_what_cannot_take_turns_is_refused(changes: list[str], said: str) -> None:
    with pytest.raises(InputError, match=said) as refused:
        _check(*changes)
    assert "stage unified-rl: `share: true`" in str(refused.value)


@pytest.mark.parametrize("name", ["one-gpu", "eight-gpus", "cluster", "cluster-shared"])
def test_the_shipped_recipes_for_gpus_start_from_a_hub_and_can_run(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    unreachable_s3(monkeypatch)
    folder = str(load_recipe(name).base.folder)
    assert folder.startswith("hf:Qwen/")
    out_of_reach = folder.replace("hf:Qwen/", "s3://models/")
    recipe = load_recipe(name, [f"base.folder={out_of_reach}"])
    plan = plan_post_train(recipe)
    check_recipe(recipe, plan)
    (rl,) = [stage for stage in plan if stage.name == "reasoning-rl"]
    assert rl.resources.share == (name != "cluster")


def test_it_says_nothing_to_stages_that_only_train_or_only_generate() -> None:
    _check()
    _check("resources.stages.evaluate={trainer: {dp: 1}, servers: 2, share: true}")
