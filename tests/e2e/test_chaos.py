"""The worst cells of the kill matrix: `make chaos` runs them all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chaos.cells import Cell, worst
from tests.chaos.ground import Ground, ground, jitter

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def place() -> Iterator[Ground]:
    with ground() as made:
        made.reference("expert")
        yield made
    assert made.left == []


@pytest.mark.parametrize("cell", worst(), ids=lambda cell: cell.name)
def test_a_killed_part_changes_no_bit_of_the_result(place: Ground, cell: Cell) -> None:
    result = place.run(cell, jitter(0, cell))
    assert result.holds, result.said
