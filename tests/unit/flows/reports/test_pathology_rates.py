"""How often answers were broken before training and after, by numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from flows.reports.charts import pathology_changes, pathology_table

pytestmark = pytest.mark.unit

RIGHT = [[1.0, 1.0]] * 4


def cell(model: str, kind: str = "score", **shown: list[float | None]) -> dict[str, Any]:
    pathologies = {name.replace("_", "-"): shares for name, shares in shown.items()}
    found = {"model": model, "domain": "a", "kind": kind, "outcomes": RIGHT}
    return {**found, "pathologies": pathologies}


def test_a_models_first_version_is_compared_with_its_last_problem_by_problem() -> None:
    """Shares 1, .5, 0, 0 and then none: two of the four signs of the differences 1 and .5 give a
    sum as far from 0 as 1.5, so p is .5. Of 0 in 4 problems Wilson's interval ends at
    3.84146 / (4 + 3.84146) = .48989."""
    cells = [
        cell("m-sft", repetition=[1.0, 0.5, 0.0, 0.0]),
        cell("m-sft", "greedy"),
        cell("m", broken_format=[None, 0.0, 0.0, 1.0]),
        cell("m", "greedy", repetition=[1.0, 1.0, 1.0, 1.0]),
        cell("other", repetition=[1.0, 1.0, 1.0, 1.0]),
    ]
    loops, faults = pathology_changes({"cells": cells}, {"m": ["m-sft", "m"], "other": ["other"]})
    assert (loops.pathology, loops.since, loops.problems) == ("repetition", "m-sft", 4)
    assert (loops.before.rate, loops.after.rate, loops.p) == (0.375, 0.0, 0.5)
    assert (loops.after.low, loops.after.high) == pytest.approx((0.0, 0.48989), abs=1e-5)
    assert (faults.pathology, faults.problems) == ("broken-format", 3)
    assert (faults.before.rate, faults.after.rate) == (0.0, pytest.approx(1 / 3))
    header, rows = pathology_table([loops])
    assert rows[0][:4] == ["m", "a", "repetition", "m-sft"]
    assert dict(zip(header, rows[0], strict=True))["after"] == "0.0% (0.0% to 49.0%)"


def test_nothing_is_said_where_no_answer_is_broken_or_one_version_is_missing() -> None:
    cells = [cell("m"), cell("m", "greedy"), cell("base")]
    assert list(pathology_changes({"cells": cells}, {"m": ["m"]})) == []
    assert list(pathology_changes({"cells": cells[:2]}, {"m": ["m"]})) == []
    assert pathology_table([])[1] == []
