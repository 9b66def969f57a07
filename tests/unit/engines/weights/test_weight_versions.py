"""Versions as runs say the same as a list of one version for each token."""

from __future__ import annotations

import pytest

from engines.weight_versions import WeightVersions

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("versions", [[], [-1], [3, 3], [-1, -1, 3, 4, 4, -1, 3]])
def test_runs_hold_the_version_of_each_token(versions: list[int]) -> None:
    runs = WeightVersions.of_runs((version, 1) for version in versions)
    assert runs.of_each().tolist() == versions
    assert len(runs) == len(versions)
    assert runs.sampled == {v for v in versions if v >= 0}
    assert runs.oldest == min((v for v in versions if v >= 0), default=-1)


def test_joined_runs_are_those_of_the_joined_tokens() -> None:
    left = WeightVersions.of_runs([(-1, 1), (3, 1)])
    right = WeightVersions.of_runs([(3, 1), (3, 1), (4, 1)])
    assert left + right == WeightVersions(((-1, 1), (3, 3), (4, 1)))
    assert WeightVersions() + right == right
    assert WeightVersions.of_runs([(3, 0), (3, 2), (4, -1)]) == WeightVersions(((3, 2),))
