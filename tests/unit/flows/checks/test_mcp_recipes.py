"""Recipes with tools of MCP servers: kept, read again, and tried before a run, server and all."""

from __future__ import annotations

from pathlib import Path

import pytest

from curricula.mcp.spec import McpServer
from flows.checks.recipe_checks import check_recipe
from flows.load import load_recipe
from flows.post_train import plan_post_train
from flows.recipe import Recipe
from infra.errors import InputError

pytestmark = pytest.mark.unit

SHOP = """
from mcp.server.fastmcp import FastMCP
server = FastMCP("shop")

@server.tool()
def price(name: str) -> str:
    "What a thing costs."
    return "3 euros"

server.run("stdio")
"""
RECIPE = """
name: shop
hooks: [shop.py]
base: {random: {hidden_size: 32, layers: 1, heads: 2, kv_heads: 1, head_dim: 16, ffn_size: 32}}
experts:
  shop:
    domain:
      max_turns: 3
      max_new_tokens: 64
      curriculum:
        name: files
        options: {sources: {files: [asks.jsonl]}, shares: {heldout: 0.3}}
        mcp: {command: [python, shop.py], program: shop}
      rewards: [{name: exact, outcome: true}]
    path: [{rl: {steps: 1, problems_per_step: 2, optimizer: {lr: 1.0e-6}}}]
evaluate: {problems: 2}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path / "home"))
    (tmp_path / "shop.py").write_text(SHOP)
    rows = [f'{{"question": "What does thing {n} cost?", "answer": "3 euros"}}' for n in range(40)]
    (tmp_path / "asks.jsonl").write_text("\n".join(rows))
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    return tmp_path


def loaded(folder: Path, *changes: str) -> Recipe:
    return load_recipe(str(folder / "recipe.yaml"), changes)


def checked(recipe: Recipe) -> None:
    check_recipe(recipe, plan_post_train(recipe), again=True)


def test_a_recipe_with_a_server_is_found_good_and_kept_as_it_is(folder: Path) -> None:
    recipe = loaded(folder)
    checked(recipe)
    assert Recipe.model_validate_json(recipe.model_dump_json()) == recipe


def test_settings_that_were_kept_are_read_again_and_those_of_the_other_kind_refused() -> None:
    for written in ({"command": ["a"], "sandbox": False}, {"url": "http://127.0.0.1/mcp"}):
        server = McpServer.model_validate(written)
        assert McpServer.model_validate(server.model_dump(mode="json")) == server
    with pytest.raises(ValueError, match=r"mcp\.sandbox: says nothing of a server by its `url`"):
        McpServer(url="http://127.0.0.1/mcp", sandbox=False)


MCP = "experts.shop.domain.curriculum.mcp"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (f"{MCP}.program=shpo", "no module 'shpo'; list its file under `hooks`"),
        (f"{MCP}.command=[nosuchprogram]", "mcp.command: there is no program `nosuchprogram`"),
        (f"{MCP}.command=[python, -c, 'raise SystemExit(\"no licence\")']", "start: no licence"),
        (f"{MCP}.tools=[prize]", "prize"),
    ],
)
def test_a_server_that_cannot_help_is_refused_before_a_run(
    folder: Path, change: str, said: str
) -> None:
    with pytest.raises(InputError, match=said):
        checked(loaded(folder, change))
