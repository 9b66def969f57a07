"""Every setting of every stage counts in its digest, or is marked as neutral to the result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from flows.load import load_recipe
from flows.post_train import plan_post_train
from infra.config import Config, is_result_neutral
from tasks.durable.stage_identity import NEUTRAL, spec_content
from tasks.stage_kinds import SPECS
from tests.parts.recipe_parts import unified_path

pytestmark = pytest.mark.unit


def fields_of(model: type[BaseModel], path: str = "") -> Iterator[tuple[str, type[BaseModel], str]]:
    for name, field in model.model_fields.items():
        yield f"{path}.{name}", model, name
        for inner in models_in(field.annotation):
            yield from fields_of(inner, f"{path}.{name}")


def models_in(annotation: Any) -> Sequence[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for part in get_args(annotation) for found in models_in(part)]


MARKED = {
    *("checkpoint_every", "keep_rollouts", "external"),
    *("micro_batch_tokens", "kernels", "max_total_tokens", "max_bad_share"),
    *("routing", "max_turns_per_server", "model", "group", "teachers", "tokenizer"),
    "at_once",
}


def test_every_setting_of_every_spec_counts_or_is_marked() -> None:
    """A field that is neither would be a stale cache."""
    seen: set[str] = set()
    for kind, spec in SPECS.items():
        for path, model, name in fields_of(spec, kind):
            seen.add(path)
            field = model.model_fields[name]
            assert issubclass(model, Config)
            # `exclude` is for what is resolved into other fields.
            assert not field.exclude or path.endswith(".preset"), path
    neutral = {
        path.rpartition(".")[2]
        for kind, spec in SPECS.items()
        for path, model, name in fields_of(spec, kind)
        if is_result_neutral(model.model_fields[name])
    }
    assert neutral == MARKED
    assert len(seen) > 200
    assert {name for _, name in NEUTRAL} == {"megatron", "sglang"}


def test_the_content_of_a_spec_is_its_dump_without_what_is_marked() -> None:
    for stage in plan_post_train(
        load_recipe("cpu-demo", [unified_path("distill", "sft", "opd", "rl")])
    ):
        dumped = stage.spec.model_dump(mode="json")
        content = spec_content(stage.spec)
        assert left_out(dumped, MARKED) == left_out(content, {"needs"})


def left_out(value: Any, names: set[str]) -> Any:
    if isinstance(value, dict):
        return {k: left_out(v, names) for k, v in value.items() if k not in names}
    return [left_out(v, names) for v in value] if isinstance(value, list) else value
