"""Secrets in options: named by the recipe, held by the process that needs them, written nowhere."""

from __future__ import annotations

from typing import Any

import pytest

from flows.checks.values import value_problems
from flows.load import load_recipe, recipe_from_tree, shipped_recipes
from flows.running.secrets import named_secrets
from infra.errors import InputError
from infra.hooks import construct
from infra.secret_references import secrets_of, written_secrets
from tests.parts.recorded_run import exit_code

pytestmark = pytest.mark.unit

DRIVER = "experts.agent.domain.driver.options"
CANARY = "CANARYRECIPE888"


@pytest.mark.parametrize(
    "change",
    [
        f"env.GITHUB_TOKEN={CANARY}",
        f"env.OPENAI_API_KEY={CANARY}",
        f"env.DB_PASSWORD={CANARY}",
        f"env.GITHUBTOKEN={CANARY}",
        f"env.AWS_SECRET_ACCESS_KEY={CANARY}",
        f"headers.Authorization={CANARY}",
        f"headers.X-Api-Key={CANARY}",
        f"api_key={CANARY}",
        f"apiKey={CANARY}",
        f"client.password={CANARY}",
        f"token={CANARY}0000",
        f"url=https://user:{CANARY}@example.org/x",
        f"text=ghp_{CANARY}0000",
        f"args=[--with, hf_{CANARY}]",
        f"said=Bearer {CANARY}",
        "said=AKIAIOSFODNN7EXAMPLE",
        "said=-----BEGIN RSA PRIVATE KEY-----",
    ],
)
def test_a_token_written_out_is_refused_without_being_repeated(
    change: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(["check", "cpu-smoke", "--set", f"{DRIVER}.{change}"]) == 2
    told = capsys.readouterr()
    said = " ".join(told.err.split())
    assert f"{DRIVER}." in said
    assert "write `secret:" in said
    for secret in (CANARY, "AKIAIOSFODNN7EXAMPLE", "PRIVATE KEY"):
        assert secret not in told.err + told.out


def test_names_and_numbers_of_every_day_are_no_secrets() -> None:
    for name in shipped_recipes():
        load_recipe(name)
    plain: dict[str, Any] = {
        "key": "answer", "answer_key": "gold", "stop_token": "<|im_end|>", "max_tokens": "512",
        "tokenizer": "word", "text": "Basic arithmetic. Do task-1234567890123 with sk-learn-tools",
        "url": "https://example.org:8080/a@b", "env": {
            "MAX_TOKENS": "512", "TOKENIZERS_PARALLELISM": "false", "KEYBOARD": "de",
            "USE_KEY": "true", "GITHUB_TOKEN": "secret:GITHUB_TOKEN",
        },
    }  # fmt: skip
    assert list(written_secrets({"options": plain})) == []


def test_a_recipe_made_in_code_is_refused_too() -> None:
    recipe = load_recipe("cpu-smoke")
    tree = recipe.model_dump(mode="json")
    tree["experts"]["agent"]["domain"]["driver"]["options"] = {"env": {"A_TOKEN": CANARY}}
    with pytest.raises(InputError, match="`secret:A_TOKEN`") as caught:
        recipe_from_tree(tree)
    assert CANARY not in str(caught.value)
    made = type(recipe).model_validate(tree)
    assert any("`secret:A_TOKEN`" in line for line in value_problems(made, []))


def test_a_part_gets_what_its_options_refer_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", CANARY)
    given = {"env": {"A": "secret:MY_TOKEN", "B": "b"}, "headers": ["secret:MY_TOKEN", 1]}
    made = construct("driver", "x", dict, given)
    assert made == {"env": {"A": CANARY, "B": "b"}, "headers": [CANARY, 1]}
    assert secrets_of(given) == {"MY_TOKEN": CANARY}

    def refusing(env: dict[str, str], headers: list[str]) -> None:
        raise ValueError(f"{env} is wrong")

    with pytest.raises(InputError) as caught:
        construct("driver", "x", refusing, given)
    assert CANARY not in str(caught.value)
    monkeypatch.delenv("MY_TOKEN")
    with pytest.raises(InputError, match=r"MY_TOKEN, which is not set.*tributary secret BLOCK"):
        construct("driver", "x", dict, given)


def test_a_run_hands_its_jobs_what_the_recipe_refers_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_TOKEN", raising=False)
    change = f"{DRIVER}.env.GITHUB_TOKEN=secret:GITHUB_TOKEN"
    recipe = load_recipe("cpu-smoke", [change])
    with pytest.raises(InputError, match="GITHUB_TOKEN, which is not set"):
        named_secrets(recipe)
    monkeypatch.setenv("GITHUB_TOKEN", CANARY)
    assert named_secrets(recipe) == {"GITHUB_TOKEN": CANARY}
    assert CANARY not in recipe.model_dump_json()
    monkeypatch.setenv("PYTHONPATH", "/x")
    steered = load_recipe("cpu-smoke", [f"{DRIVER}.env.A=secret:PYTHONPATH"])
    with pytest.raises(InputError, match="PYTHONPATH decides what runs"):
        named_secrets(steered)
