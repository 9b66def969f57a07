"""Settings that nothing reads beside what else the recipe says: each is refused or named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flows.checks import idle_settings as checked
from flows.checks.idle_settings import idle_settings
from flows.load import SHIPPED, load_recipe, validate_recipe
from flows.post_train import plan_post_train
from infra.errors import InputError

pytestmark = pytest.mark.unit

PATH, DOMAIN = "experts.reasoning.path", "experts.reasoning.domain"
RL, SFT = f"{PATH}.1.rl", f"{PATH}.0.sft"
BRIEF = "{{name: length, options: {{budget: {}, margin: {}}}, only_right: true}}"
"""a reward, of a domain whose rollouts have at most 24 tokens"""
OWN = "{files: [chats.jsonl]}"
EXTERNAL = "external: ['http://h:1']"


@pytest.fixture(autouse=True)
def _on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checked, "has_cuda", lambda: False)


def said(*changes: str, recipe: str = "cpu-smoke") -> list[str]:
    loaded = load_recipe(recipe, changes)
    return list(idle_settings(loaded, plan_post_train(loaded)))


@pytest.mark.parametrize("name", sorted(path.stem for path in SHIPPED.glob("*.yaml")))
def test_a_shipped_recipe_has_none(name: str) -> None:
    assert said(recipe=name) == []


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ([f"{RL}.algorithm.preset=ppo", f"{RL}.oversample=2"], f"{RL}.oversample"),
        ([f"{RL}.algorithm.preset=ppo", f"{RL}.refill_rounds=3"], f"{RL}.refill_rounds"),
        ([f"{RL}.algorithm.overlong={{budget: 4096}}"], f"{RL}.algorithm.overlong.budget"),
        ([f"{RL}.algorithm.overlong={{budget: 30}}"], f"{RL}.algorithm.overlong.budget"),
        ([f"{DOMAIN}.rewards.1={BRIEF.format(4096, 100)}"], f"{DOMAIN}.rewards.1.options.budget"),
        ([f"{DOMAIN}.rewards.1={BRIEF.format(34, 10)}"], f"{DOMAIN}.rewards.1.options.budget"),
        (
            ["evaluate.sampling=[{temperature: 0.6}, {thought_tokens: 4000}]"],
            "evaluate.sampling.1.thought_tokens",
        ),
        ([f"{RL}.group_filter.timeout_s=5"], f"{RL}.group_filter.timeout_s"),
        ([f"{RL}.fleet={{{EXTERNAL}, max_total_tokens: 9}}"], f"{RL}.fleet.max_total_tokens"),
        ([f"{RL}.fleet={{{EXTERNAL}, sglang: {{page_size: 4}}}}"], f"{RL}.fleet.sglang.page_size"),
        ([f"{RL}.fleet.sglang.enable_p2p_check=true"], f"{RL}.fleet.sglang.enable_p2p_check"),
        ([f"{DOMAIN}.driver.timeout_s=5"], f"{DOMAIN}.driver.timeout_s"),
        ([f"{DOMAIN}.timeout_s=5"], f"{DOMAIN}.timeout_s"),
        ([f"{DOMAIN}.rewards.0.timeout_s=5"], f"{DOMAIN}.rewards.0.timeout_s"),
        (["unified.path.1.sft.demonstrations=7"], "unified.path.1.sft.demonstrations"),
        (["lm_eval.limit=5"], "lm_eval.limit"),
        (["storage.credentials=mine"], "storage.credentials"),
        (["resources.other_devices=[{memory_gb: 80, per_host: 8}]"], "resources.other_devices"),
        (["data=[words.txt]"], "data"),
        (
            ["resources.stages.evaluate={trainer: {dp: 2}}"],
            "resources.stages.evaluate.trainer",
        ),
        (
            ["resources.stages.reasoning-sft={servers: 2}"],
            "resources.stages.reasoning-sft.servers",
        ),
        (["resources.stages.reasoning-sft={share: true}"], "resources.stages.reasoning-sft.share"),
        (
            ["resources.stages.evaluate={weights: {transport: broadcast}}"],
            "resources.stages.evaluate.weights",
        ),
        (["resources.default={critic: {dp: 2}}"], "resources.default.critic"),
    ],
)
def test_a_setting_that_nothing_reads_is_named(changes: list[str], named: str) -> None:
    (line,) = said(*changes)
    assert line.startswith(f"{named}: ")


def test_what_is_read_is_not_named() -> None:
    assert not said(f"{RL}.oversample=2", f"{RL}.group_filter={{name: 'mine:F', timeout_s: 5}}")
    assert not said(f"{RL}.algorithm.preset=ppo", f"{RL}.oversample=1")
    assert not said(
        "resources.devices={memory_gb: 80, per_host: 8}", f"{RL}.fleet.sglang.numa_node=[0]"
    )
    assert not said(f"{RL}.refill_rounds=3", f"{RL}.algorithm.overlong={{budget: 29}}")
    assert not said(f"{RL}.algorithm.overlong={{}}", f"{DOMAIN}.rewards.1={BRIEF.format(33, 10)}")
    assert not said("evaluate.sampling=[{thought_tokens: 23}]")
    both = "{trainer: {dp: 2}, servers: 2}"
    assert not said(f"resources.stages={{unified-sft: {both}, evaluate: {both}}}"), "one block"
    assert not said("resources.default={share: true, weights: {transport: broadcast}}")
    assert not said("lm_eval={tasks: [arc_easy], limit: 5}", "evaluate.samples_elsewhere=2")
    again = "[{sft: {steps: 4, demonstrations: 7, optimizer: {lr: 1e-3}}}, distill, sft]"
    assert not said(f"{PATH}={again}"), "a stage may be said again with all that it has"


def test_one_expert_alone_draws_no_other_splits_and_has_no_other_domain(tmp_path: Path) -> None:
    (tmp_path / "asked.jsonl").write_text(json.dumps({"prompt": "1+1?", "answer": "2"}))
    options = {
        "sources": {"files": [str(tmp_path / "asked.jsonl")]},
        "shares": {"heldout": 0, "sft": 0.5, "distill": 0.2},
        "decontaminate": 13,
    }
    domain = {
        "curriculum": {"name": "files", "options": options},
        "rewards": [{"name": "exact", "outcome": True}],
    }
    path = [
        {"rl": {"steps": 1, "optimizer": {"lr": 1e-3}}},
        {"sft": {"steps": 1, "optimizer": {"lr": 1e-3}, "data": {"files": ["chats.jsonl"]}},
         "curriculum_options": {"thinking": True}},
    ]  # fmt: skip
    recipe = {
        "name": "one",
        "base": {"random": {}},
        "experts": {"reasoning": {"domain": domain, "path": path, "teaches": False}},
        "evaluate": {"samples_elsewhere": 2},
    }
    loaded = validate_recipe(recipe, "here")
    found = list(idle_settings(loaded, plan_post_train(loaded)))
    at = f"{DOMAIN}.curriculum.options"
    assert [line.partition(": ")[0] for line in found] == [
        *(f"{at}.shares.sft", f"{at}.shares.distill", f"{at}.decontaminate"),
        *(f"{PATH}.1.curriculum_options", "experts.reasoning.teaches"),
        "evaluate.samples_elsewhere",
    ]
    assert "50% of the rows" in found[0]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ([f"{SFT}={{steps: 4, demonstrations: 7, optimizer: {{lr: 1e-3}}, data: {OWN}}}"],
         "demonstrations: is not used, as the stage trains on its own files"),
        ([f"{PATH}=[{{screen: {{most: 64}}}}, {{rl: {{steps: 1, optimizer: {{lr: 1e-3}}}}}}]"],
         "most: is not used, as only hard and never need more"),
    ],
)  # fmt: skip
def test_what_contradicts_itself_is_refused(changes: list[str], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        said(*changes)
