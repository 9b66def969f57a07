"""What Prefect's form submits: every default of the deployment's schema, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from prefect.utilities.callables import parameter_schema

from engines.algorithms.presets import PRESETS
from engines.algorithms.spec import Algorithm
from engines.megatron.spec import CriticSettings
from flows.deployed import post_train
from flows.recipe import Recipe
from tasks.opd.spec import OpdSettings
from tasks.rl.spec import RlSettings
from tests.parts.recipe_parts import settings_of

pytestmark = pytest.mark.unit

Json = dict[str, Any]
SCHEMA: Json = parameter_schema(post_train.fn).model_dump()


def filled(schema: Json) -> Any:
    """A part of the form as it is opened: defaults, and the defaults within what has none.

    As Chromium was seen to fill and send it: a constant without a default stays empty, and what is
    null is sent as null.
    """
    if "$ref" in schema:
        resolved = SCHEMA["definitions"][schema["$ref"].rpartition("/")[2]]
        schema = {**resolved, **schema}
    default = schema.get("default")
    parts = schema.get("properties", {}).items()
    within = {name: filled(part) for name, part in parts}
    within = {
        name: value
        for (name, part) in parts
        if (value := within[name]) is not None or part.get("default", ...) is None
    }
    return {**within, **default} if isinstance(default, dict) else default or within or None


def part(name: str) -> Json:
    return filled({"$ref": f"#/definitions/{name}"})


def chosen(kind: str) -> Json:
    """A stage of a path, as it is chosen in the form."""
    forms = SCHEMA["definitions"]["PathStage"]["anyOf"]
    return filled(next(form for form in forms if form["required"] == [kind])) or {}


def submitted(algorithm: Json) -> Json:
    """The page's whole submission: an expert by JSON, the unified model in the form."""
    optimizer = {**part("Optimizer"), "lr": 1e-4}
    rl = {**part("RlSettings"), "steps": 1, "optimizer": optimizer}
    rl["algorithm"] = {**rl.get("algorithm", {}), **algorithm}
    sft = {**part("SftSettings"), "steps": 1, "optimizer": optimizer}
    domain = {"curriculum": {"name": "general"}, "rewards": [{"name": "format", "outcome": True}]}
    short = {"steps": 1, "optimizer": optimizer}
    expert = {"domain": domain, "path": [{"sft": short}, {"rl": short}]}
    opd = {**part("OpdSettings"), **short}
    stages = {"distill": part("DistillSettings"), "sft": sft, "opd": opd, "rl": rl}
    unified = {"path": [{**chosen(kind), kind: stage} for kind, stage in stages.items()]}
    written = {"name": "mine", "base": {"random": part("RandomModel")}, "unified": unified}
    return {**part("Recipe"), **written, "experts": {"general": expert}}


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_chosen_in_the_form_is_what_trains(preset: str) -> None:
    recipe = Recipe.model_validate(submitted({"preset": preset}))
    assert recipe.unified is not None
    assert settings_of(recipe.unified.path, RlSettings).algorithm == Algorithm(preset=preset)
    assert settings_of(recipe.unified.path, OpdSettings).algorithm == Algorithm(preset="opd")


@pytest.mark.parametrize(
    ("preset", "name", "opened"),
    [("dr-grpo", "loss", "ClipLoss"), ("dis", "advantage", "GroupAdvantage"),
     ("sao", "advantage", "GaeAdvantage"), ("icepop", "correction", "Correction")],
)  # fmt: skip
def test_a_part_that_is_opened_in_the_form_changes_nothing_by_itself(
    preset: str, name: str, opened: str
) -> None:
    recipe = Recipe.model_validate(submitted({"preset": preset, name: part(opened) or {}}))
    assert recipe.unified is not None
    assert settings_of(recipe.unified.path, RlSettings).algorithm == Algorithm(preset=preset)


def test_the_kind_of_a_part_that_is_opened_is_filled_in() -> None:
    opened = part("GroupAdvantage")
    assert opened == {"kind": "group", "std": None, "whiten": None}
    assert Algorithm.model_validate({"advantage": opened}) == Algorithm()


def test_a_critic_of_the_form_may_have_an_optimizer_of_its_own() -> None:
    own = {**part("Optimizer"), "lr": 1e-3}
    assert (
        CriticSettings.model_validate({**part("CriticSettings"), "optimizer": own}).optimizer
        is not None
    )
