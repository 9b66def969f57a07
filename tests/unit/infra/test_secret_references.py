"""Secrets in options: named by the recipe, held by the process that needs them, written nowhere."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flows.checks.engines import value_problems
from flows.load import load_recipe, recipe_from_tree, shipped_recipes
from flows.running.secrets import secrets_of_run
from infra.errors import InputError, StorageError
from infra.hooks import construct
from infra.secret_references import (
    RunSecrets,
    environment_without_secrets,
    for_part,
    secrets_of,
    with_secrets_of_the_store,
    written_secrets,
)
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


@pytest.mark.parametrize(
    "address",
    [
        f"s3://AKID:{CANARY}@bucket/store",
        f"redis://:{CANARY}@cache/0",
        f"HTTPS://user:{CANARY}@lab.example/rows",
        f"abfs://c@lab.dfs.core.windows.net/x?sv=2024&sig={CANARY}%2Bx%3D&se=2027",
        f"DefaultEndpointsProtocol=https;AccountName=lab;AccountKey={CANARY}0000==;Endpoint=x",
        f"https://lab.blob.core.windows.net/c?SharedAccessSignature={CANARY}0000",
        f"https://bucket.s3.amazonaws.com/x?X-Amz-Credential=x&X-Amz-Signature={CANARY}00",
        f"https://storage.googleapis.com/b/x?X-Goog-Signature={CANARY}00&x=1",
        f"https://lab.example/rows?access_token={CANARY}00&x=1",
    ],
)
def test_a_secret_in_an_address_is_refused_and_printed_nowhere(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = f"experts.reasoning.domain.curriculum_options={{files: {json.dumps(address)}}}"
    for arguments in (
        ["check", "cpu-smoke", "--set", f"storage.root={address}"],
        ["check", "cpu-smoke", "--set", f"base={{folder: {json.dumps(address)}}}"],
        ["check", "cpu-smoke", "--set", rows],
        ["artifacts", "--root", address],
        ["preview", address, "--model", address],
        ["check", "cpu-smoke", "--set", f"no_such_field={address}"],
        ["check", "cpu-smoke", "--set", f"seed={address}"],
        ["export", "no-such-model", address],
    ):
        assert exit_code(arguments) in (1, 2), arguments
        told = capsys.readouterr()
        assert CANARY not in told.err + told.out, arguments
    assert CANARY not in str(StorageError(f"could not read {address}: broken"))
    assert CANARY not in repr(InputError(f"{address}: broken"))


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


def test_a_secret_in_the_body_of_a_users_requests_is_seen() -> None:
    (told,) = written_secrets({"user": {"api": {"body": {"api_key": "plain"}}}})
    assert told.startswith("user.api.body.api_key: looks like a secret")


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
        secrets_of_run(recipe)
    monkeypatch.setenv("GITHUB_TOKEN", CANARY)
    assert secrets_of_run(recipe).held["GITHUB_TOKEN"] == CANARY
    assert CANARY not in recipe.model_dump_json()
    monkeypatch.setenv("PYTHONPATH", "/x")
    steered = load_recipe("cpu-smoke", [f"{DRIVER}.env.A=secret:PYTHONPATH"])
    with pytest.raises(InputError, match="PYTHONPATH decides what runs"):
        secrets_of_run(steered)


SPECS: dict[str, Any] = {
    "base of a hub": {"spec": {"settings": {"folder": "hf:org/name@1"}}},
    "base of a bucket": {"spec": {"settings": {"folder": "gs://bucket/model"}}},
    "agent": {"spec": {"domain": {"driver": {"options": {"env": {"A": "secret:GITHUB_TOKEN"}}}}}},
    "served by others": {"spec": {"fleet": {"external": ["http://10.0.0.7:30000"]}}},
    "any other": {"spec": {"settings": {"url": "https://example.org", "steps": 3}}},
}
STORED = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
HELD = STORED | {"HF_TOKEN", "GITHUB_TOKEN", "OTHER_TOKEN", "EXTERNAL_FLEET_KEY", "OF_A_HOOK_KEY"}


@pytest.mark.parametrize(
    ("stage", "more"),
    [
        ("base of a hub", {"HF_TOKEN"}),
        ("base of a bucket", {"HF_TOKEN"}),
        ("agent", {"GITHUB_TOKEN"}),
        ("served by others", {"EXTERNAL_FLEET_KEY"}),
        ("any other", set[str]()),
    ],
)
def test_a_job_gets_the_secrets_that_its_stage_needs(stage: str, more: set[str]) -> None:
    secrets = RunSecrets(dict.fromkeys(HELD, CANARY), frozenset({"GITHUB_TOKEN", "OTHER_TOKEN"}))
    assert secrets.needed_by(SPECS[stage]).keys() == STORED | {"OF_A_HOOK_KEY"} | more
    assert CANARY not in repr(secrets)


def test_servers_services_and_parts_get_less() -> None:
    proxy = {"HTTPS_PROXY": "http://user:word1@proxy:3128"}
    plain = proxy | {"PATH": "/bin", "HF_HOME": "/x", "AWS_DEFAULT_REGION": "here"}
    urls = {"DATABASE": f"postgresql://user:{CANARY}@db/x"}
    env = dict.fromkeys(HELD, CANARY) | plain | urls
    assert with_secrets_of_the_store(env).keys() == plain.keys() | STORED
    assert environment_without_secrets(env) == plain
    more = {"SMTP_PASS", "WANDB_AUTH", "BEARER", "SESSION_COOKIE", "SLACK_WEBHOOK", "SENTRY_DSN"}
    kept = {
        "SSH_AUTH_SOCK": "/tmp/x",
        "GIT_ASKPASS": "/bin/x",
        "XAUTHORITY": "/x",
        "MY_BYPASS": "1",
    }
    assert environment_without_secrets(dict.fromkeys(more, CANARY) | kept) == kept
    git = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
    assert environment_without_secrets(git) == git, "all of them, or git ends with an error"
    header = {"GIT_CONFIG_KEY_0": "http.extraHeader", "GIT_CONFIG_VALUE_0": "AUTHORIZATION: x y"}
    assert environment_without_secrets(git | header) == {}
    ours = STORED | {"EXTERNAL_FLEET_KEY"}
    assert for_part(env, ("reward", {})).keys() == env.keys() - ours
    named = ("reward", {"key": "secret:AWS_SECRET_ACCESS_KEY"})
    assert for_part(env, named).keys() == env.keys() - ours | {"AWS_SECRET_ACCESS_KEY"}
