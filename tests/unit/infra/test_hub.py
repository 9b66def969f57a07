"""Models by `hf:org/name@revision`, over HTTP, from a stand-in for the hub."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from flows.command.models.card import licence_of
from flows.load import load_recipe
from flows.recipe import Recipe
from flows.running.new_run import pinned_arguments, pinned_recipe, recipe_as_on_record
from infra.errors import InputError, StorageError
from infra.home import SOURCE_ROOT
from infra.hub import front_matter, hub_name, pinned, snapshot, upload_model
from tasks.base.import_folder import import_model
from tasks.durable.stage_identity import folder_fingerprint
from tasks.model_folder.folder_report import report_model
from tests.parts.chat_parts import random_base
from tests.parts.hub import TOKEN, Hub, hub_standin, use_hub

pytestmark = pytest.mark.unit


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with hub_standin() as hub:
        use_hub(hub, monkeypatch, tmp_path / "hub-cache")
        yield hub


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return random_base(tmp_path / "base")


def of_base(folder: str) -> Recipe:
    return load_recipe("cpu-smoke", [f"base={{folder: '{folder}'}}"])


@pytest.mark.parametrize(
    ("text", "repo", "revision"),
    [
        ("hf:org/name", "org/name", "main"),
        ("hf:org/name@v1.0", "org/name", "v1.0"),
        ("hf://org/name@main", "org/name", "main"),
    ],
)
def test_a_name_is_read(text: str, repo: str, revision: str) -> None:
    name = hub_name(text)
    assert (name.repo, name.revision) == (repo, revision)


@pytest.mark.parametrize(
    "text",
    [
        *("hf:", "hf:a/b/c", "hf:org/name@", "hf:org name", "hf:org/..", "hf:../name"),
        *("hf:org/name@../../x", "hf:org/name@/etc", "hf:org/name@a/../b", "hf:org/name@a\nb"),
    ],
)
def test_a_name_that_is_none_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(InputError, match="hf:ORG/NAME@REVISION"):
        hub_name(text)


BOMB = "a: &a {x: 1}\n" + "".join(
    f"{name}: &{name} {{<<: [{', '.join([f'*{before}'] * 9)}]}}\n"
    for before, name in pairwise("abcdefghijk")
)
"""nine to the power of ten values, in 500 characters"""


@pytest.mark.parametrize("text", [BOMB, "license: 2024-13-45", "a: " + "[" * 9999, "a: {", "a: !x"])
def test_the_head_of_a_card_from_anywhere_is_read_in_no_time_or_refused(
    text: str, tmp_path: Path
) -> None:
    (tmp_path / "README.md").write_text(f"---\n{text}\n---\n# x")
    with pytest.raises(ValueError):  # noqa: PT011 of several libraries
        front_matter((tmp_path / "README.md").read_text())
    assert licence_of(tmp_path) == "unknown"


@pytest.mark.parametrize("text", ["---" + "\n" * 200_000, "---\n" + "\n--- x" * 100_000])
def test_a_card_that_only_begins_its_front_is_read_in_linear_time(text: str) -> None:
    began = time.process_time()
    assert front_matter(text) is None
    assert time.process_time() - began < 5


def test_a_model_is_looked_at_without_downloading_its_weights(hub: Hub, base: Path) -> None:
    hub.add_folder("org/small", base)
    report = report_model("hf:org/small")
    assert report.problems == ()
    assert report.parameters == report_model(str(base)).parameters > 0


def test_it_is_imported_once_and_then_found_in_the_cache(
    hub: Hub, base: Path, tmp_path: Path
) -> None:
    commit = hub.add_folder("org/small", base)
    for copy in (tmp_path / "one", tmp_path / "two"):
        copy.mkdir()
        assert import_model(f"hf:org/small@{commit}", copy)["parameters"] > 0
        for file in base.iterdir():
            assert (copy / file.name).read_bytes() == file.read_bytes()
    fetched = [r for r in hub.requests if r == f"GET /org/small/resolve/{commit}/model.safetensors"]
    assert len(fetched) == 1


def test_a_cached_commit_needs_no_connection(hub: Hub, base: Path) -> None:
    commit = hub.add_folder("org/small", base)
    folder = snapshot(f"hf:org/small@{commit}")
    hub.is_down = True
    assert snapshot(f"hf:org/small@{commit}") == folder


def test_a_model_that_may_not_be_asked_for_blames_the_setting_and_not_the_network(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(
        StorageError, match=r"org/small@main has .* HF_HUB_OFFLINE is set: unset it"
    ):
        snapshot("hf:org/small")


def test_the_commit_is_what_enters_the_digest(hub: Hub, base: Path) -> None:
    first = hub.add_folder("org/small", base)
    assert folder_fingerprint("hf:org/small") == {"hub": "org/small", "commit": first}
    second = hub.repos["org/small"].commit({"README.md": b"new"})
    assert folder_fingerprint(f"hf:org/small@{first}")["commit"] == first
    assert folder_fingerprint(f"hf:org/small@{second}")["commit"] == second


def test_a_push_leaves_no_weights_of_an_earlier_one(
    hub: Hub, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.add_folder("lab/agent", base)
    others = {".gitattributes": b"lfs", "gguf/agent.gguf": b"q4", "onnx/config.json": b"{}"}
    hub.repos["lab/agent"].commit(others)
    sharded = {
        name: name.encode() for name in ("model-1.safetensors", "model.safetensors.index.json")
    }
    pushed = tmp_path / "pushed"
    pushed.mkdir()
    for name, data in sharded.items():
        (pushed / name).write_bytes(data)
    upload_model(pushed, "hf:lab/agent", "Upload it", is_public=False)
    repo = hub.repos["lab/agent"]
    assert repo.commits[repo.head] == {**others, **sharded}


def test_a_run_on_record_keeps_its_commit(hub: Hub, base: Path) -> None:
    first = hub.add_folder("org/small", base)
    recipe = of_base("hf:org/small")
    recorded = pinned_recipe(recipe)
    assert recorded.base.folder == f"hf:org/small@{first}"
    assert pinned_arguments({"models": {"a": "hf:org/small", "b": "/x"}, "n": 1}) == {
        "models": {"a": f"hf:org/small@{first}", "b": "/x"},
        "n": 1,
    }
    hub.repos["org/small"].commit({"README.md": b"new"})
    assert recipe_as_on_record(recipe, recorded) == recorded
    other = of_base("hf:org/other")
    assert recipe_as_on_record(other, recorded) == other


def test_each_model_of_an_ensemble_keeps_its_commit(hub: Hub, base: Path) -> None:
    commits = [hub.add_folder(f"org/{name}", base) for name in "ab"]
    served = "served: {model: ['hf:org/a', taste-reward, 'hf:org/b']}"
    term = f"{{name: reward-model, outcome: true, {served}}}"
    recipe = load_recipe("cpu-smoke", [f"experts.general.domain.rewards=[{term}]"])
    recorded = pinned_recipe(recipe)
    domain = recorded.experts["general"].domain
    assert domain is not None
    assert list(domain.rewards[0].served_models.items()) == [
        ("reward-model-1", f"hf:org/a@{commits[0]}"),
        ("reward-model-2", "taste-reward"),
        ("reward-model-3", f"hf:org/b@{commits[1]}"),
    ]
    hub.repos["org/b"].commit({"README.md": b"new"})
    assert recipe_as_on_record(recipe, recorded) == recorded


def test_what_cannot_be_had_is_explained(
    hub: Hub, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add_folder("org/secret", base, is_private=True)
    hub.add_folder("org/terms", base, is_gated=True)
    hub.add_folder("org/open", base)
    for name, told in (
        ("hf:org/nothing", "no such model, or it is private"),
        ("hf:org/secret", "set HF_TOKEN for a private one"),
        ("hf:org/terms", "is gated: accept its terms"),
        ("hf:org/open@v9", "no such branch, tag or commit"),
    ):
        for act in (pinned, snapshot):
            with pytest.raises(InputError, match=told) as refused:
                act(name)
            assert name in str(refused.value)
        assert report_model(name).problems
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert snapshot("hf:org/secret").is_dir()
    assert snapshot("hf:org/terms").is_dir()


def test_a_hub_out_of_reach_may_be_tried_again(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(StorageError, match="cannot be reached") as told:
        pinned("hf:org/small")
    assert told.value.retryable
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match="HF_HUB_OFFLINE is set"):
        pinned("hf:org/small")


@pytest.mark.parametrize(
    ("target", "is_offline"), [("demo", False), ("real", False), ("test", True)]
)
def test_a_stack_that_make_leaves_behind_may_ask_the_hub(target: str, is_offline: bool) -> None:
    """Its jobs have the environment that it was started with, and fetch what is asked for next."""
    env = {k: v for k, v in os.environ.items() if k != "HF_HUB_OFFLINE" and "MAKE" not in k}
    found = subprocess.run(
        ["make", "-np", target],
        cwd=SOURCE_ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ("\nHF_HUB_OFFLINE = 1\n" in found.stdout) is is_offline
