"""What is read of environments of verifiers and tasks of Inspect, in a process of its own."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import pytest

from curricula.built_in_curricula import build as build_curriculum
from infra.errors import InputError
from tests.parts.clients import TASKS, library

pytestmark = pytest.mark.integration

SUMS = {"environment": "sums-env", "arguments": {"size": 40}}


def test_held_out_rows_of_verifiers_are_never_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    library(monkeypatch, "verifiers")
    curriculum: Any = build_curriculum("verifiers", SUMS)
    assert list(curriculum.left_out) == ["2 rows are left out, as a held-out one is the same"]
    held_out = curriculum.problems("heldout", 40, seed=0)
    trained = [*curriculum.problems("rl", 60, seed=0), *curriculum.problems("distill", 60, seed=0)]
    asked = {p.messages for p in held_out}
    assert len(asked) == 40
    assert not asked & {p.messages for p in trained}
    assert len({p.id for p in trained}) == 120, "a row of another epoch has another id"
    assert curriculum.problems("rl", 5, seed=0, start=30) == trained[30:35]
    with pytest.raises(InputError, match=r"41 held-out .* has 40; set evaluate.problems to 40"):
        curriculum.problems("heldout", 41, seed=0)
    with pytest.raises(InputError, match="shows no solutions"):
        curriculum.demonstrations(1, seed=0)


def test_prompts_with_images_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    library(monkeypatch, "verifiers")
    options = {"environment": "sums_env", "arguments": {"image": True}}
    with pytest.raises(InputError, match="part of type 'image_url': the policy reads text only"):
        build_curriculum("verifiers", options).problems("heldout", 1, seed=0)


@pytest.mark.parametrize(
    ("name", "options"),
    [("verifiers", {"environment": "sums_env"}), ("inspect", {"task": "inspect_tasks:sums"})],
)
def test_a_missing_library_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, name: str, options: dict[str, Any]
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(TASKS)])
    package, module = {
        "verifiers": ("verifiers", "verifiers"),
        "inspect": ("inspect-ai", "inspect_ai"),
    }[name]
    if importlib.util.find_spec(module) is not None:
        pytest.skip(f"{package} is part of this environment")
    said = f"{package} is not installed; install it .* -r locks/libraries.txt"
    curriculum = build_curriculum(name, options | {"arguments": {"size": 5}})  # read by nobody yet
    with pytest.raises(InputError, match=said):
        curriculum.problems("heldout", 1, seed=0)
