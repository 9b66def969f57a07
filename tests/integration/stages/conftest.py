"""One Ray, with warm ranks and servers, for all tests of stages' bodies."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import home_of_same_key
from tests.parts.ray_parts import own_ray
from tests.parts.stage_parts import stage_context


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """With a home of its own; its actors end with it. The home stays: servers that these tests
    share with others in `tests/integration` may have begun in it."""
    home = home_of_same_key(tmp_path_factory.mktemp("home"))
    with own_ray({"TRIBUTARY_HOME": home}, num_gpus=0):
        yield


@pytest.fixture(scope="package")
def stage_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stages")


@pytest.fixture(scope="package")
def small_base(stage_root: Path) -> Path:
    """A random base of two layers, as the base stage makes it."""
    from tasks.base.body import run as run_base
    from tasks.base.spec import BaseSpec

    random = {"layers": 2, "hidden_size": 64, "tokenizer_texts": 200}
    # near-uniform logits: rollouts that differ
    settings = {"random": random | {"embedding_std": 0.02}}
    spec = BaseSpec.model_validate({"settings": settings, "curricula": [{"name": "general"}]})
    context = stage_context(stage_root, "base", {})
    asyncio.run(run_base(spec, context))
    return context.out
