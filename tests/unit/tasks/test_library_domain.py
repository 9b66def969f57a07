"""A domain of a library's task: what belongs together, and what its digest counts."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from tasks.domain import CurriculumSpec, Domain

pytestmark = pytest.mark.unit

POSED = {"name": "verifiers", "options": {"environment": "my-env"}}
SCORED = [{"name": "library-score", "outcome": True}]


@pytest.mark.parametrize(
    ("domain", "said"),
    [
        ({"curriculum": POSED, "rewards": SCORED}, "are rolled out by `driver: {name: library}`"),
        ({"curriculum": {"name": "agent"}, "driver": {"name": "library"}, "rewards": SCORED},
         "it rolls out no others"),
        ({"curriculum": {"name": "agent"}, "rewards": SCORED},
         "library-score judges problems of verifiers and inspect only"),
    ],
)  # fmt: skip
def test_a_task_its_driver_and_its_score_belong_together(domain: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Domain.model_validate(domain)
    Domain.model_validate({"curriculum": POSED, "rewards": SCORED, "driver": {"name": "library"}})


def test_the_module_of_a_task_counts_in_the_digest() -> None:
    def own(name: str, **options: Any) -> tuple[str, ...]:
        return CurriculumSpec(name=name, options=options).parts[1:]

    assert own("verifiers", environment="someone/my-env") == ("my_env:",)
    assert own("inspect", task="my_tasks.sums:easy") == ("my_tasks.sums:",)
    assert own("inspect", task=3) == own("reasoning") == ()
